"""The whole state machine against hidden limits, in virtual time; `benchmarks/limits.py` prints the full table."""

from typing import Any

import pytest

from benchmarks.limits import Case, Simulation, share, simulate, time_to_s
from stillhouse.inference.rate_limit import Caps
from tests.provider.limits import Limits


@pytest.mark.parametrize("telling", [{}, {"headers": True, "retry_after": "whole"}, {"reasons": False}])
@pytest.mark.parametrize(
    "limits",
    [
        Limits(requests_per_minute=600),
        Limits(requests_per_minute=3000),
        Limits(requests_per_minute=600, rejects_consume=True),
        Limits(concurrency=8),
        Limits(concurrency=24),
        Limits(concurrency=200),
    ],
)
def test_a_hidden_limit_is_used_and_few_are_refused(limits: Limits, telling: dict[str, Any]) -> None:
    trace = simulate(Case("", limits, latency_s=0.2, duration_s=180.0, **telling))
    assert share(trace, limits, 60.0, 180.0) >= 0.97
    assert trace.refused_share <= 0.012


@pytest.mark.parametrize("telling", [{}, {"reasons": False}])
def test_a_start_far_above_a_hidden_limit_costs_few_refusals(
    monkeypatch: pytest.MonkeyPatch, telling: dict[str, Any]
) -> None:
    # A refusal that is slow to come back: until then all of a sudden start would have been sent.
    monkeypatch.setattr("benchmarks.limits._REFUSAL_S", 0.1)
    trace = simulate(Case("", Limits(concurrency=32), latency_s=2.0, num_prompts=500, initial=256, **telling))
    assert len(trace.refused) < 0.1 * 500
    assert trace.finished_s < 1.25 * 500 * 2.0 / 32


@pytest.mark.parametrize("telling", [{}, {"headers": True, "retry_after": "whole"}])
@pytest.mark.parametrize(
    ("limits", "latency_s"),
    [
        (Limits(tokens_per_minute=400_000), 2.0),
        (Limits(tokens_per_minute=2_000_000, tokens_counted="max_tokens"), 0.2),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_hidden_limit_of_tokens_is_used_and_few_are_refused(
    limits: Limits, latency_s: float, telling: dict[str, Any], seed: int
) -> None:
    trace = simulate(Case("", limits, latency_s=latency_s, seed=seed, **telling))
    assert share(trace, limits, 60.0, 300.0) >= 0.97
    assert trace.refused_share <= 0.012


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Limits(requests_per_minute=600), Limits(requests_per_minute=1200)),
        (Limits(tokens_per_minute=400_000), Limits(tokens_per_minute=800_000)),
        (Limits(concurrency=24), Limits(concurrency=48)),
    ],
)
@pytest.mark.parametrize("latency_s", [0.2, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_raised_limit_is_found_in_half_a_minute(before: Limits, after: Limits, latency_s: float, seed: int) -> None:
    trace = simulate(Case("", before, [(120.0, after)], latency_s, duration_s=180.0, seed=seed))
    assert time_to_s(trace, after, 120.0, 180.0) <= 30.0


@pytest.mark.parametrize(
    ("before", "after", "most"),
    [
        (Limits(requests_per_minute=600), Limits(requests_per_minute=300), 10),
        (Limits(concurrency=64), Limits(concurrency=16), 50),
    ],
)
def test_a_limit_that_fell_is_met_calmly(before: Limits, after: Limits, most: int) -> None:
    trace = simulate(Case("", before, [(120.0, after)], duration_s=180.0))
    assert sum(120.0 <= at < 150.0 for at in trace.refused) <= most


@pytest.mark.parametrize("reasons", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_a_retry_after_of_89_s_on_every_refusal_does_not_freeze_it(reasons: bool, seed: int) -> None:
    limits = Limits(requests_per_minute=600)
    trace = simulate(Case("", limits, retry_after=89.0, reasons=reasons, seed=seed))
    assert share(trace, limits, 60.0, 300.0) >= 0.9


def test_without_any_limit_the_window_grows_until_the_users_cap() -> None:
    simulation = Simulation(Case("", Limits(), latency_s=2.0, duration_s=20.0, caps=Caps(1000)))
    trace = simulation.run()
    assert simulation.control.limit == 1000
    assert max(number for _, number in trace.served) > 900


def test_the_users_rates_are_never_exceeded() -> None:
    caps = Caps(100, requests_per_minute=300.0, tokens_per_minute=60_000.0)
    trace = simulate(Case("", Limits(), caps=caps, duration_s=120.0))
    for start in range(0, 60, 10):
        tokens = [tokens for at, tokens in trace.accepted if start <= at < start + 60]
        assert len(tokens) <= 300 * 1.02
        assert sum(tokens) <= 60_000 * 1.05


def test_finite_work_under_a_cap_comes_near_the_optimum() -> None:
    case = Case("", Limits(concurrency=32), num_prompts=2000, initial=32, caps=Caps(256), completion_tokens=138.0)
    trace = simulate(case)
    assert trace.finished_s <= 13.23 / 0.95
    assert len(trace.refused) <= 0.05 * 2000
