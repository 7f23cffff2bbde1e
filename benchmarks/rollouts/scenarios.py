"""What clients are put through: hidden limits, faults, kills, tools. Nothing here is known to a client."""

from dataclasses import dataclass, field, replace
from typing import Final

from tests.provider.answers import Service
from tests.provider.limits import Limits, Step

_S = {"latency_s": 0.2, "latency_sigma": 0.3}


@dataclass(frozen=True, slots=True)
class Scenario:
    """One of them."""

    title: str
    service: Service
    num_prompts: int
    concurrency: int = 256
    """Requests that a client is allowed to have in flight."""
    num_samples: int = 1
    num_samples_first: int | None = None
    """Samples of a first run, after which the same job runs with `num_samples`; None has one run."""
    kills: tuple[float, ...] = ()
    """Shares of the requests after which the client's process group is killed and started again."""
    max_tokens: int = 64
    padding: int = 0
    """Characters by which prompts are longer."""
    tool_s: float = 0.0
    hanging_every: int = 0
    """Every so many cases a tool never returns."""
    stall_s: float = 2.0
    """The optimum's deadline for an answer that does not come."""
    max_rows: int | None = None
    """Rows that can be had at all; None for all."""
    limit_s: float | None = None
    """When a client is stopped; None takes some times the optimum."""
    only: frozenset[str] | None = field(default=None)
    """Sides it makes sense for; None for all."""

    @property
    def num_turns(self) -> int:
        """Requests of one rollout."""
        return self.service.tool_turns + 1

    @property
    def num_rows(self) -> int:
        """Rows that are to come in."""
        return self.max_rows if self.max_rows is not None else self.num_prompts * self.num_samples

    @property
    def num_requests(self) -> int:
        """Requests that have to be billed."""
        return self.num_rows * self.num_turns

    def scaled(self, factor: float) -> "Scenario":
        """The same with fewer prompts."""
        return replace(self, num_prompts=max(24, round(self.num_prompts * factor)))


def _limited(
    *steps: tuple[float, Limits],
    headers: bool = False,
    latency_s: float = 0.2,
    **service: object,
) -> Service:
    announced = {"retry_after": "whole", "has_headers": True} if headers else {}
    return Service.model_validate(
        {
            "latency_s": latency_s,
            "latency_sigma": 0.3,
            "steps": [Step(at_s=at_s, limits=limits) for at_s, limits in steps],
            **announced,
            **service,
        }
    )


_RPM: Final = Limits(requests_per_minute=1200, burst_requests=20)
_MIXED: Final = Limits(
    requests_per_minute=1200, burst_requests=20, tokens_per_minute=240_000, burst_tokens=8000, concurrency=48
)
_TOOL_SIDES: Final = frozenset({"engine", "script", "batches", "inspect_ai"})
_FAST: Final = Limits(requests_per_minute=1800, burst_requests=30)
_HALF: Final = Limits(requests_per_minute=900, burst_requests=15)

SCENARIOS: Final[dict[str, Scenario]] = {
    "S1": Scenario("no limit, 200 ms", Service(**_S), 2000),
    "S2": Scenario("32 at once", _limited((0, Limits(concurrency=32))), 2000),
    "S3": Scenario("1200 RPM, Retry-After and headers", _limited((0, _RPM), headers=True), 600),
    "S4": Scenario(
        "240k TPM, Retry-After and headers",
        _limited((0, Limits(tokens_per_minute=240_000, burst_tokens=4000)), headers=True, completion_tokens=150),
        600,
        max_tokens=256,
    ),
    "S5": Scenario(
        "64 at once, 16 from 10 s to 20 s",
        _limited((0, Limits(concurrency=64)), (10, Limits(concurrency=16)), (20, Limits(concurrency=64))),
        5000,
    ),
    "S6": Scenario(
        "5 % 500, 1 % resets, 0.5 % silent for 60 s, 1 % cut",
        Service(**_S, faults={"500": 0.05, "reset": 0.01, "silent": 0.005, "cut": 0.01}),
        2000,
        limit_s=150,
    ),
    "S7": Scenario("kill -9 at half", Service(**_S), 1000, concurrency=64, kills=(0.5,)),
    "S8": Scenario("no limit, 20 ms", Service(latency_s=0.02), 20_000),
    "S9": Scenario(
        "S3, refusals count",
        _limited((0, _RPM.model_copy(update={"rejects_consume": True})), headers=True),
        600,
    ),
    "S10": Scenario("S3 without a hint", _limited((0, _RPM)), 600),
    "A": Scenario(
        "RPM, TPM and 48 at once; answers grow tenfold halfway",
        _limited((0, _MIXED), headers=True, latency_s=0.5, long_from=450, completion_tokens=40),
        700,
        max_tokens=512,
    ),
    "B-actual": Scenario(
        "max_tokens 4096, replies of 150; 600k TPM of actual tokens",
        _limited((0, Limits(tokens_per_minute=600_000)), completion_tokens=150),
        400,
        max_tokens=4096,
        padding=1600,
    ),
    "B-reserved": Scenario(
        "the same, 5M TPM of allowed tokens",
        _limited((0, Limits(tokens_per_minute=5_000_000, tokens_counted="max_tokens")), completion_tokens=150),
        400,
        max_tokens=4096,
        padding=1600,
    ),
    "C-windows": Scenario(
        "600 RPM in fixed windows of 60 s",
        _limited((0, Limits(requests_per_minute=600, window_s=60)), headers=True),
        1100,
    ),
    "C-daily": Scenario(
        "200 requests a day, Retry-After 3600: to stop and not to sleep",
        _limited((0, Limits(requests_per_day=200)), headers=True),
        400,
        max_rows=200,
        limit_s=60,
    ),
    "D": Scenario(
        "1200 RPM, refusals count, no hint, no reason",
        _limited((0, _RPM.model_copy(update={"rejects_consume": True})), say_why=False),
        600,
    ),
    "E": Scenario(
        "600 RPM, Retry-After 89 s on every 429",
        _limited((0, Limits(requests_per_minute=600, burst_requests=10)), retry_after=89.0),
        1200,
        limit_s=600,
    ),
    "F-steps": Scenario(
        "1800 RPM, 900 from 20 s to 40 s", _limited((0, _FAST), (20, _HALF), (40, _FAST)), 1500
    ),
    "F-rival": Scenario(
        "1800 RPM; from 15 s to 35 s another client takes half; headers tell the whole",
        _limited((0, _FAST), (15, _FAST.model_copy(update={"rival_share": 0.5})), (35, _FAST), headers=True),
        1200,
    ),
    "G": Scenario(
        "10,000 RPM, 2 s",
        _limited((0, Limits(requests_per_minute=10_000)), latency_s=2.0),
        5000,
        concurrency=600,
    ),
    "H": Scenario(
        "5 turns with a tool, kill -9 at 30 % and 60 %",
        Service(**_S, tool_turns=4),
        200,
        concurrency=64,
        kills=(0.3, 0.6),
        only=_TOOL_SIDES,
    ),
    "I": Scenario(
        "200 with an error body, `choices: null`, empty content, cut bodies, 1 % silent for 60 s",
        Service(
            **_S,
            faults={
                "error_body": 0.02,
                "rate_body": 0.01,
                "null_choices": 0.02,
                "empty": 0.01,
                "cut": 0.01,
                "silent": 0.01,
            },
        ),
        1000,
        limit_s=150,
    ),
    "J": Scenario(
        "tools of 2 s, one in thirty hanging",
        Service(latency_s=0.1, tool_turns=2),
        120,
        concurrency=64,
        tool_s=2.0,
        hanging_every=30,
        only=_TOOL_SIDES,
    ),
    "K": Scenario(
        "4 samples a prompt, then 8",
        Service(**_S),
        64,
        num_samples=8,
        num_samples_first=4,
        only=frozenset({"engine", "script", "batches", "inspect_ai"}),
    ),
}  # fmt: skip
