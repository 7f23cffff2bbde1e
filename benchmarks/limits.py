"""Rate control against hidden limits, in virtual time: `python -m benchmarks.limits [--only TEXT] [--seeds N]`.

The state machine that rides in front of a real endpoint is driven here by an event simulation of one: the simulated
provider's own limiter (`tests.provider.limits`), requests that travel a millisecond, refusals that come back in
five, latencies and lengths that are lognormal. Five minutes of work take a fraction of a second, the same every time.

Columns: share of the hidden limit used (after the first minute; before and after a change apart), refused sends in a
hundred, and for finite work the makespan of a client that knows all, over ours.

What was learnt:

- What a provider accepts from one refusal to the next, over the time between, is its rate whatever the size of its
  bucket; a chain of such links converges like 1/n. Cutting by a factor and growing again converges like nothing.
- After a refusal for concurrency the number in flight ahead of the refused request is the limit. Requests sent at the
  same instant overtake each other, so within a burst the number that stays in flight tells more.
- Probes have to be paid for out of accepted requests: 125 of them a refusal keeps refusals below one in a hundred.
- A bucket of one request (60 a minute) overflows whenever the pace is short of the limit, so that the chain
  underestimates: 0.91 of the limit, and 2 % refused, as five refusals are 2 % of five minutes.
- Of latencies near the time of travel (20 ms against 2), a limit in flight cannot be filled: 0.91 is all there is.
- A refused probe of the window tells only that the step went too far, as requests overtake each other: back to the
  number held, 8 in flight are used to 0.99; cut to the number ahead they were to 0.955.
- Where sizes are estimates, a refusal is followed by another unless three requests' units have come in again.
- Where a refusal says nothing at all, what was accepted under like conditions tells rate from concurrency.
  With few in flight for seconds each (60 requests/min of 5 s) that takes minutes; with 20 ms it may go wrong (0.55).
- A start of 256 that the user gives, approached by 20 in the first 0.1 s and then by answers, uses limits of 8 to 128
  in flight as the default start does (0.93 to 1.00 over 2000 prompts), with one refusal in a hundred.
- Fixed windows that tell nothing are closed once used up, and asking whether they are is refused: 2 to 4 %.
"""

import heapq
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from benchmarks.frame.rounds import argument_parser, publish
from stillhouse.inference.failures import FailureKind
from stillhouse.inference.rate_limit import Caps, LimitScope, Outcome, RateControl, RateLimits, RequestSize, Ticket
from stillhouse.inference.rate_limit.headers import Allowance
from tests.provider.limits import Limiter, Limits, Size, Step

_TRAVEL_S: Final = 0.001
_REFUSAL_S: Final = 0.005
_ENDLESS: Final = 10**12
_CHARACTERS_PER_TOKEN: Final = 4
_CONVERGED_S: Final = 60.0
_LESS_IS_BETTER: Final = frozenset({"refused", "seconds to 0.9"})


@dataclass(frozen=True, slots=True)
class Case:
    """A provider and the number of requests sent to it."""

    name: str
    limits: Limits
    changes: Sequence[tuple[float, Limits]] = ()
    """From when on, in seconds, other limits hold."""
    latency_s: float = 0.2
    """Median."""
    sigma: float = 0.3
    headers: bool = False
    """Whether answers carry rate limit headers."""
    reasons: bool = True
    """Whether a refusal says what there was too much of."""
    retry_after: Literal["exact", "whole"] | float | None = None
    """What refusals say in Retry-After: the wait itself, whole seconds, always the same, or nothing."""
    failing: float = 0.0
    """Share of answers that are a 5xx."""
    num_prompts: int | None = None
    """None has endless work for `duration_s`."""
    duration_s: float = 300.0
    initial: int = 20
    caps: Caps = field(default_factory=lambda: Caps(100_000))
    prompt_tokens: int = 60
    completion_tokens: float = 150.0
    max_tokens: int = 1000
    optimum_s: float | None = None
    """Makespan of a client that knows the limits (`benchmarks/rollouts`)."""
    seed: int = 0


@dataclass(slots=True)
class Trace:
    """What the provider saw."""

    accepted: list[tuple[float, int]] = field(default_factory=list)
    """(time, tokens) of each request served."""
    refused: list[float] = field(default_factory=list)
    served: list[tuple[float, int]] = field(default_factory=list)
    """(time, requests being served) at every change."""
    finished_s: float = math.inf

    @property
    def refused_share(self) -> float:
        """Refused sends, as a share of all."""
        return len(self.refused) / max(1, len(self.refused) + len(self.accepted))


class Simulation:
    """One run of a case; `control` may be looked at after `run`."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._rng = random.Random(case.seed)
        steps = [Step(at_s=0.0, limits=case.limits), *(Step(at_s=at, limits=later) for at, later in case.changes)]
        self._limiter = Limiter(steps)
        self.control = RateControl(case.initial, case.caps)
        self.trace = Trace()
        self._events: list[tuple[float, int, str, Any]] = []
        self._num_events = 0
        self._num_waiting = self._num_open = case.num_prompts or _ENDLESS
        self._num_served = 0
        self._wake_at = math.inf
        self._size = RequestSize(case.prompt_tokens * _CHARACTERS_PER_TOKEN, case.max_tokens)

    def run(self) -> Trace:
        """Until the work is done or the time is up."""
        self._send_all(0.0)
        while self._events and self._num_open:
            now, _, kind, payload = heapq.heappop(self._events)
            if now > self._case.duration_s:
                break
            if kind == "arrive":
                self._arrive(payload, now)
            elif kind == "serve":
                self._num_served -= 1
                self.trace.served.append((now, self._num_served))
                self._push(now + _TRAVEL_S, "settle", payload)
            else:
                if kind == "settle":
                    ticket, outcome = payload
                    self._settle(ticket, outcome, now)
                elif now == self._wake_at:
                    self._wake_at = math.inf
                self._send_all(now)
        return self.trace

    def _push(self, at: float, kind: str, payload: Any) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (at, self._num_events, kind, payload))

    def _send_all(self, now: float) -> None:
        while self._num_waiting:
            ticket = self.control.admit(self._size, now)
            if ticket is None:
                wait_s = self.control.wait_s(now)
                if wait_s is not None and now + wait_s < self._wake_at - 1e-9:
                    self._wake_at = now + max(wait_s, 1e-4)
                    self._push(self._wake_at, "wake", None)
                return
            self._num_waiting -= 1
            self._push(now + _TRAVEL_S * (1.0 + 0.5 * self._rng.random()), "arrive", ticket)

    def _settle(self, ticket: Ticket, outcome: Outcome, now: float) -> None:
        self.control.settle(ticket, outcome, now)
        if outcome.kind is None:
            self._num_open -= 1
            self.trace.finished_s = now
        else:
            self._num_waiting += 1

    def _arrive(self, ticket: Ticket, now: float) -> None:
        case, rng, limiter = self._case, self._rng, self._limiter
        completion_tokens = max(1, round(case.completion_tokens * math.exp(rng.gauss(0.0, 0.4))))
        size = Size(case.prompt_tokens + completion_tokens, case.prompt_tokens + case.max_tokens)
        refusal = limiter.refusal(now, self._num_served) or limiter.size_refusal(now, size)
        if refusal is not None:
            limiter.note_refused(now)
            self.trace.refused.append(now)
            scope = LimitScope(refusal.scope) if case.reasons else None
            refused = Outcome(FailureKind.RATE, self._retry_after(refusal.wait_s), self._headers(now), scope)
            self._push(now + _REFUSAL_S, "settle", (ticket, refused))
            return
        limiter.take(now, size)
        self._num_served += 1
        self.trace.served.append((now, self._num_served))
        counted = size.tokens if limiter.limits.tokens_counted == "actual" else size.reserved_tokens
        self.trace.accepted.append((now, counted))
        outcome = Outcome(FailureKind.TRANSIENT)
        if rng.random() >= case.failing:
            outcome = Outcome(None, None, self._headers(now), None, case.prompt_tokens, completion_tokens)
        self._push(now + case.latency_s * math.exp(rng.gauss(0.0, case.sigma)), "serve", (ticket, outcome))

    def _headers(self, now: float) -> RateLimits | None:
        if not self._case.headers:
            return None
        standings = self._limiter.standing(now)
        requests, tokens = (
            Allowance(standings[unit].limit, math.floor(standings[unit].remaining)) if unit in standings else None
            for unit in ("requests", "tokens")
        )
        return RateLimits(requests, tokens)

    def _retry_after(self, wait_s: float) -> float | None:
        given = self._case.retry_after
        if given == "exact":
            return wait_s
        if given == "whole":
            return float(math.ceil(max(wait_s, 0.01)))
        return given


def simulate(case: Case) -> Trace:
    """What the provider saw of the case."""
    return Simulation(case).run()


def share(trace: Trace, limits: Limits, start_s: float, end_s: float) -> float:
    """What was used of the limit that was used most, between two times; NaN where there is none."""
    shares = []
    for per_minute, weight in ((limits.requests_per_minute, False), (limits.tokens_per_minute, True)):
        if per_minute is not None:
            used = sum(tokens if weight else 1 for at, tokens in trace.accepted if start_s <= at < end_s)
            shares.append(used / (per_minute / 60.0 * (end_s - start_s)))
    if limits.concurrency is not None:
        shares.append(_mean_served(trace, start_s, end_s) / limits.concurrency)
    return max(shares, default=math.nan)


def _mean_served(trace: Trace, start_s: float, end_s: float) -> float:
    area, at, level = 0.0, start_s, 0
    for when, number in trace.served:
        if when >= end_s:
            break
        if when > start_s:
            area += level * (when - at)
            at = when
        level = number
    return (area + level * (end_s - at)) / (end_s - start_s)


def time_to_s(trace: Trace, limits: Limits, changed_s: float, end_s: float) -> float:
    """Seconds after a change until five seconds in a row use 0.9 of the limit; infinite when they never do."""
    for second in range(int(changed_s), int(end_s) - 5):
        if share(trace, limits, second, second + 5.0) >= 0.9:
            return second + 5.0 - changed_s
    return math.inf


_TELLING: Final[dict[str, dict[str, Any]]] = {
    "reasons": {},
    "headers": {"headers": True, "retry_after": "whole"},
    "retry-after": {"retry_after": "exact"},
    "nothing": {"reasons": False},
}


def _converged() -> Iterator[Case]:
    """Each kind of limit, at four latencies, with all that a provider may tell."""
    for latency_s in (0.02, 0.2, 2.0, 5.0):
        for telling, options in _TELLING.items():
            for rpm in (60, 600, 3000):
                name = f"{rpm} requests/min, {latency_s:g} s, {telling}"
                yield Case(name, Limits(requests_per_minute=rpm), latency_s=latency_s, **options)
            name = f"400k tokens/min, {latency_s:g} s, {telling}"
            yield Case(name, Limits(tokens_per_minute=400_000), latency_s=latency_s, **options)
            for number in (8, 24, 32, 200):
                if number / latency_s < 2000:
                    name = f"{number} in flight, {latency_s:g} s, {telling}"
                    duration_s = min(300.0, _CONVERGED_S + 60_000 * latency_s / number)
                    limits = Limits(concurrency=number)
                    yield Case(name, limits, latency_s=latency_s, duration_s=duration_s, **options)


def _peculiar() -> Iterator[Case]:
    """Providers with habits of their own, and several limits at once."""
    rpm, both = Limits(requests_per_minute=600), {"requests_per_minute": 6000, "tokens_per_minute": 4_000_000}
    kinds = {
        "fixed windows": Case("", rpm.model_copy(update={"window_s": 60.0}), duration_s=600.0),
        "refusals count": Case("", rpm.model_copy(update={"rejects_consume": True})),
        "max_tokens count": Case("", Limits(tokens_per_minute=2_000_000, tokens_counted="max_tokens")),
        "bucket of a minute": Case("", rpm.model_copy(update={"burst_requests": 600.0}), duration_s=600.0),
        "all three, requests bind": Case(
            "", Limits(requests_per_minute=600, tokens_per_minute=400_000, concurrency=60)
        ),
        "all three, tokens bind": Case(
            "", Limits(**(both | {"tokens_per_minute": 400_000}), concurrency=200), latency_s=2
        ),
        "all three, in flight binds": Case("", Limits(**both, concurrency=24), latency_s=2),
    }
    for kind, case in kinds.items():
        for telling, options in _TELLING.items():
            yield replace(case, name=f"{kind}, {telling}", **options)
        yield replace(case, name=f"{kind}, Retry-After 89 s", retry_after=89.0)
    for latency_s in (0.2, 2.0):
        name = f"600 requests/min, {latency_s:g} s, Retry-After 89 s and no reason"
        yield Case(name, rpm, latency_s=latency_s, reasons=False, retry_after=89.0)
    yield Case("10 000 requests/min, 2 s", Limits(requests_per_minute=10_000), latency_s=2.0)


def _changing() -> Iterator[Case]:
    """Limits that rise and fall after two minutes."""
    pairs = {
        "600 -> 1200 requests/min": (Limits(requests_per_minute=600), Limits(requests_per_minute=1200)),
        "600 -> 300 requests/min": (Limits(requests_per_minute=600), Limits(requests_per_minute=300)),
        "400k -> 800k tokens/min": (Limits(tokens_per_minute=400_000), Limits(tokens_per_minute=800_000)),
        "24 -> 48 in flight": (Limits(concurrency=24), Limits(concurrency=48)),
        "64 -> 16 in flight": (Limits(concurrency=64), Limits(concurrency=16)),
    }
    for name, (before, after) in pairs.items():
        for latency_s in (0.2, 2.0):
            for telling, options in _TELLING.items():
                title = f"{name}, {latency_s:g} s, {telling}"
                yield Case(title, before, [(120.0, after)], latency_s, duration_s=240.0, **options)


def _finite() -> Iterator[Case]:
    """S1-S10 of the comparison with peers, without hangs and kills; 256 prompts, 32 in flight at the start."""
    announced: dict[str, Any] = {"headers": True, "retry_after": "whole"}
    rpm = Limits(requests_per_minute=1200, burst_requests=20)
    tpm = Limits(tokens_per_minute=240_000, burst_tokens=4000)
    cap = Limits(concurrency=64)
    common: dict[str, Any] = {"initial": 32, "caps": Caps(256), "completion_tokens": 138.0, "duration_s": 200.0}
    yield Case("S1 no limit", Limits(), num_prompts=2000, optimum_s=2.08, **common)
    yield Case("S2 cap of 32", Limits(concurrency=32), num_prompts=2000, optimum_s=13.23, **common)
    told = common | {"initial": 256}
    yield Case("S2, 256 given", Limits(concurrency=32), num_prompts=2000, optimum_s=13.23, **told)
    yield Case("S3 1200 requests/min", rpm, num_prompts=600, optimum_s=29.30, **announced, **common)
    yield Case("S4 240k tokens/min", tpm, num_prompts=600, optimum_s=31.43, **announced, **common)
    low = [(10.0, Limits(concurrency=16)), (20.0, cap)]
    yield Case("S5 cap 64, 16, 64", cap, low, num_prompts=5000, optimum_s=24.09, **common)
    yield Case("S6 6.5 % failing", Limits(), num_prompts=2000, optimum_s=2.22, failing=0.065, **common)
    yield Case("S8 no limit, 20 ms", Limits(), num_prompts=20_000, latency_s=0.02, optimum_s=1.66, **common)
    consumes = rpm.model_copy(update={"rejects_consume": True})
    yield Case("S9 S3, refusals count", consumes, num_prompts=600, optimum_s=29.30, **announced, **common)
    yield Case("S10 S3, untold", rpm, num_prompts=600, optimum_s=29.30, **common)


def main() -> None:
    """Prints the table."""
    parser = argument_parser(__doc__)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each case; figures are means, then the worst")
    options = parser.parse_args()
    lines: list[str] = []
    figures: dict[str, dict[str, float]] = {}
    for cases in (_converged(), _peculiar(), _changing(), _finite()):
        for case in cases:
            if options.only in case.name:
                figures[case.name] = _over_seeds([_figures(replace(case, seed=seed)) for seed in range(options.seeds)])
                lines.append(f"{case.name:44}" + "".join(f"  {key} {it:.3f}" for key, it in figures[case.name].items()))
    publish(lines, figures, options.json)


def _over_seeds(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    if len(runs) == 1:
        return runs[0]
    figures: dict[str, float] = {}
    for key in runs[0]:
        values = [run[key] for run in runs]
        worst = max if key in _LESS_IS_BETTER else min
        figures |= {key: sum(values) / len(values), f"worst {key}": worst(values)}
    return figures


def _figures(case: Case) -> dict[str, float]:
    trace = simulate(case)
    figures = {"refused": trace.refused_share}
    if case.optimum_s is not None:
        return {"of optimum": case.optimum_s / trace.finished_s, **figures}
    if not case.changes:
        return {"share": share(trace, case.limits, _CONVERGED_S, case.duration_s), **figures}
    changed_s, after = case.changes[0]
    return {
        "before": share(trace, case.limits, _CONVERGED_S, changed_s),
        "after": share(trace, after, changed_s + 30.0, case.duration_s),
        "seconds to 0.9": time_to_s(trace, after, changed_s, case.duration_s),
        **figures,
    }


if __name__ == "__main__":
    main()
