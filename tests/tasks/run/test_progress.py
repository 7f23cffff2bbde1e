from collections.abc import Iterator

import pytest

from stillhouse.errors import QuotaError
from stillhouse.progress.state import NoProgress, RolloutProgress
from stillhouse.progress.text import lines_of
from tasks.run.progress import PartProgress, rollout_stage, shown_by
from tests.tasks.run.shown import Clock, Shown


@pytest.fixture
def seen() -> Iterator[Shown]:
    with shown_by(listener := Shown()):
        yield listener


def test_parts_that_run_at_once_are_shown_as_one_stage_of_all_rollouts(seen: Shown) -> None:
    clock = Clock()
    with rollout_stage("rollouts", 900):
        parts = [PartProgress("rollouts", name, 300, clock) for name in "ab"]
        parts[0].show(RolloutProgress(done=10, total=None, limit=8, in_flight=7))
        parts[1].show(RolloutProgress(done=5, total=None, limit=9, in_flight=8))
    shown = seen.last
    assert (shown.done, shown.total, shown.limit, shown.in_flight) == (15, 900, 9, 8)
    assert {stage for stage, _ in seen.states} == {"rollouts"}


def test_a_part_counts_from_its_start_and_knows_no_limit_before_it_asks(seen: Shown) -> None:
    with rollout_stage("rollouts", 20):
        PartProgress("rollouts", "a", 10).show(RolloutProgress(done=3, total=10, limit=8))
        PartProgress("rollouts", "b", 10)
    assert (seen.last.done, seen.last.total, seen.last.limit) == (3, 20, 8)


def test_the_speed_is_that_of_all_parts_together_however_short_each_was(seen: Shown) -> None:
    clock = Clock()
    with rollout_stage("rollouts", 40):
        for name in "abcd":
            part = PartProgress("rollouts", name, 10, clock)
            clock.now += 0.5
            # The answers of a part come in at once, after half a second.
            fast = {"rows_per_s": 1000.0, "tokens_per_s": 9000.0}
            part.show(RolloutProgress(done=10, total=10, num_tokens=90, **fast))
    assert (seen.last.done, seen.last.rows_per_s, seen.last.tokens_per_s) == (40, 20.0, 180.0)


def test_a_part_that_was_at_hand_is_done_and_cost_nothing(seen: Shown) -> None:
    with rollout_stage("rollouts", 20):
        PartProgress("rollouts", "a", 10).skip()
    assert (seen.last.done, seen.last.num_replayed, seen.last.usd) == (10, 10, 0.0)


def test_a_part_sampled_by_a_worker_elsewhere_is_shown_with_what_it_cost(seen: Shown) -> None:
    with rollout_stage("rollouts", 20):
        part = PartProgress("rollouts", "a", 10)
        part.finish({"failed": 1, "completion_tokens": 900, "cost_usd": 0.25})
    assert (seen.last.done, seen.last.failed, seen.last.num_tokens, seen.last.usd) == (10, 1, 900, 0.25)
    assert dict(lines_of(seen.last))["limit"] == "each worker has its own"


def test_an_error_says_what_all_parts_together_have_finished(seen: Shown) -> None:
    def sample() -> None:
        PartProgress("rollouts", "a", 10).skip()
        PartProgress("rollouts", "b", 10).show(RolloutProgress(done=8, total=10, failed=2))
        raise QuotaError("no money left.")

    expected = r"^no money left\. Saved: 16 of 30 finished, in all shards"
    with pytest.raises(QuotaError, match=expected) as raised, rollout_stage("rollouts", 30):
        sample()
    assert isinstance(raised.value.__cause__, QuotaError)


def test_stages_that_follow_one_another_share_no_counts(seen: Shown) -> None:
    for _ in range(2):
        with rollout_stage("rollouts", 10):
            PartProgress("rollouts", "a", 10).skip()
    PartProgress("rollouts", "b", 7).skip()
    assert [state.done for _, state in seen.states] == [0, 10, 0, 10, 0, 7]


def test_what_shows_nothing_takes_everything() -> None:
    NoProgress().update("sft", 1, 2)
    NoProgress().update_rollouts("rollouts", RolloutProgress(done=1, total=2))
