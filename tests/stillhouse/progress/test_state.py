import pytest

from stillhouse.progress.state import RecentRate, RolloutProgress, UsdRange, add_up_rollouts


def test_the_time_left_follows_from_the_present_rate() -> None:
    assert RolloutProgress(done=40, total=100, rows_per_s=2.0).eta_s == 30.0
    assert RolloutProgress(done=100, total=100, rows_per_s=2.0).eta_s == 0.0


@pytest.mark.parametrize(
    "state", [RolloutProgress(done=40, total=None, rows_per_s=2.0), RolloutProgress(done=0, total=100)]
)
def test_without_total_or_rate_nobody_knows_the_time_left(state: RolloutProgress) -> None:
    assert state.eta_s is None


def test_a_rate_is_that_of_the_window_and_not_since_the_start() -> None:
    rate = RecentRate(window_s=10.0)
    assert rate.per_second(0, now=100.0) == 0.0
    assert rate.per_second(50, now=105.0) == 10.0
    assert rate.per_second(100, now=110.0) == 10.0
    # From here on the count stands still.
    assert rate.per_second(100, now=115.0) == 5.0
    assert rate.per_second(100, now=120.0) == 0.0
    assert rate.per_second(100, now=500.0) == 0.0


def test_two_calls_at_one_moment_give_no_rate() -> None:
    rate = RecentRate()
    rate.per_second(0, now=1.0)
    assert rate.per_second(5, now=1.0) == 0.0


def test_counts_and_money_add_up_and_limits_do_not() -> None:
    first = RolloutProgress(
        done=3, total=10, failed=1, rows_per_s=1.0, num_tokens=100, tokens_per_s=10.0, in_flight=7, limit=8,
        limit_reason="growing", num_rate_limited=2, retries={"transient": 1}, usd=0.5, num_replayed=2,
    )  # fmt: skip
    second = RolloutProgress(
        done=4, total=10, rows_per_s=2.0, num_tokens=50, tokens_per_s=20.0, in_flight=6, limit=9,
        limit_reason="cut by a 429", requests_per_minute=60.0, retries={"transient": 2, "stall": 1}, usd=0.25,
    )  # fmt: skip
    both = add_up_rollouts([first, second], total=30, newest=second)
    assert both == RolloutProgress(
        done=7, total=30, failed=1, num_replayed=2, rows_per_s=2.0, num_tokens=150, tokens_per_s=20.0, in_flight=6,
        limit=9, limit_reason="cut by a 429", requests_per_minute=60.0, num_rate_limited=2,
        retries={"stall": 1, "transient": 3}, usd=0.75,
    )  # fmt: skip


def test_money_is_unknown_as_soon_as_one_part_does_not_know_it() -> None:
    parts = [RolloutProgress(done=1, total=2, usd=1.0), RolloutProgress(done=1, total=2)]
    assert add_up_rollouts(parts, total=4, newest=parts[0]).usd is None


def test_the_projection_of_the_parts_that_have_one_is_scaled_to_all_rollouts() -> None:
    parts = [
        RolloutProgress(done=20, total=100, usd=1.0, usd_projected=UsdRange(4.0, 5.0, 6.0)),
        RolloutProgress(done=5, total=100, usd=0.2),
    ]
    assert add_up_rollouts(parts, total=400, newest=parts[1]).usd_projected == UsdRange(16.0, 20.0, 24.0)
    assert add_up_rollouts(parts[1:], total=400, newest=parts[1]).usd_projected is None
