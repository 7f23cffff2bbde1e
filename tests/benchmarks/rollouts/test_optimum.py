from typing import Any

import pytest

from benchmarks.rollouts.optimum import optimum_s
from benchmarks.rollouts.scenarios import Scenario
from tests.provider.answers import Service
from tests.provider.limits import Limits, Step


def scenario(num_prompts: int, *, limits: dict[str, Any] | None = None, **keys: Any) -> Scenario:
    steps = (Step(at_s=0, limits=Limits(**limits)),) if limits else ()
    described = {"latency_s": 0.2, **keys.pop("service", {})}
    return Scenario("", Service(steps=steps, **described), num_prompts, **keys)


@pytest.mark.parametrize(
    ("case", "expected_s"),
    [
        # Four rounds of 0.2 s with eight slots.
        (scenario(32, concurrency=8), 0.8),
        # A hidden cap of four: eight rounds.
        (scenario(32, limits={"concurrency": 4}), 1.6),
        # Ten at once, the other 20 at one a second, and the last one's latency.
        (scenario(30, limits={"requests_per_minute": 60, "burst_requests": 10}), 20.2),
        # A window of ten at 0 s, 10 s and 20 s.
        (scenario(30, limits={"requests_per_minute": 60, "window_s": 10}), 20.2),
        # Three turns of 0.2 s with two tools of 1 s between.
        (scenario(4, service={"tool_turns": 2}, tool_s=1.0), 2.6),
        # A tool that never returns costs its timeout of 5 s in place of 1 s.
        (scenario(4, service={"tool_turns": 1}, tool_s=1.0, hanging_every=2), 0.2 + 5.0 + 0.2),
        # No more than the account allows.
        (scenario(50, limits={"requests_per_day": 8}, max_rows=8, concurrency=4), 0.4),
    ],
)
def test_optimum_is_the_closed_form_where_there_is_one(case: Scenario, expected_s: float) -> None:
    assert optimum_s(case) == pytest.approx(expected_s, abs=1e-6)


def test_limits_that_change_are_followed_at_once() -> None:
    steps = [(0, 60.0), (10, 120.0)]
    service = Service(
        latency_s=0.0,
        steps=tuple(Step(at_s=at, limits=Limits(requests_per_minute=rpm, burst_requests=1)) for at, rpm in steps),
    )
    # Eleven in the first ten seconds, then two a second.
    assert optimum_s(Scenario("", service, 31)) == pytest.approx(20.0, abs=1e-6)


def test_faults_cost_another_attempt() -> None:
    good = optimum_s(scenario(400, concurrency=8))
    faulty = optimum_s(scenario(400, concurrency=8, service={"faults": {"500": 0.5}}))
    assert faulty == pytest.approx(2 * good, rel=0.15)
    silent = optimum_s(scenario(400, concurrency=8, service={"faults": {"silent": 0.05}}))
    assert silent == pytest.approx(good + 400 * 0.05 * 2.0 / 8, rel=0.4)
