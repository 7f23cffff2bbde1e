from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from stillhouse.errors import StoreError
from stillhouse.training.on_policy.batches.queue import BatchQueue
from stillhouse.training.on_policy.table import RolloutTable
from tests.stillhouse.training.on_policy.tables import table_of


class Maker:
    """Makes empty batches, and notes of which weights; one of them may have to wait or fail."""

    def __init__(self, before_second: Callable[[], object] = lambda: None) -> None:
        self.made: list[tuple[int, int]] = []
        self._before_second = before_second

    def begin(self, index: int, policy_version: int) -> Callable[[], RolloutTable]:
        def make() -> RolloutTable:
            if index == 1:
                self._before_second()
            self.made.append((index, policy_version))
            return table_of([], index=index, version=policy_version)

        return make


NewQueue = Callable[..., BatchQueue]


@pytest.fixture
def new_queue(tmp_path: Path) -> NewQueue:
    """Makes queues of one folder."""

    def make(maker: Maker | None = None, num_batches: int = 9, **settings: Any) -> BatchQueue:
        return BatchQueue((maker or Maker()).begin, tmp_path, num_batches=num_batches, **settings)

    return make


def test_each_batch_is_of_the_newest_weights(new_queue: NewQueue) -> None:
    queue = new_queue(num_batches=3)
    assert [queue.get(index, 2 * index).metrics["version"] for index in range(3)] == [0, 2, 4]
    assert queue.get(2, 5).metrics["version"] == 4


def test_batches_are_made_ahead_but_not_behind_the_end(new_queue: NewQueue) -> None:
    maker = Maker()
    queue = new_queue(maker, num_batches=4, max_staleness=2)
    assert [queue.get(index, index).metrics["version"] for index in range(4)] == [0, 0, 0, 1]
    assert maker.made == [(0, 0), (1, 0), (2, 0), (3, 1)]


def test_a_killed_training_makes_nothing_again(new_queue: NewQueue) -> None:
    first = new_queue(max_staleness=1)
    for index in range(3):
        first.get(index, index)
    maker = Maker()
    again = new_queue(maker, max_staleness=1)
    assert [again.get(index, index).metrics["version"] for index in range(1, 5)] == [0, 1, 2, 3]
    assert maker.made == [(4, 3), (5, 4)]


def test_a_batch_in_the_place_of_another_is_refused(new_queue: NewQueue, tmp_path: Path) -> None:
    queue = new_queue()
    for index in range(2):
        queue.get(index, index)
    (tmp_path / "batch-00000000.parquet").rename(tmp_path / "batch-00000001.parquet")
    with pytest.raises(StoreError, match=r"batch-00000001\.parquet: .*0, expected 1"):
        new_queue().get(1, 1)


def test_a_batch_with_more_metrics_is_kept(new_queue: NewQueue) -> None:
    queue = new_queue()
    queue.get(0, 0)
    queue.keep(table_of([], old=1.0))
    assert queue.get(0, 0).metrics == new_queue().get(0, 0).metrics == {"old": 1.0}


def test_batches_that_no_checkpoint_leads_back_to_are_deleted(new_queue: NewQueue, tmp_path: Path) -> None:
    queue = new_queue()
    for index in range(4):
        queue.get(index, index)
    queue.forget_before(2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["batch-00000002.parquet", "batch-00000003.parquet"]


def test_the_next_batch_is_made_while_this_one_is_trained_on(new_queue: NewQueue) -> None:
    is_trained = Event()
    queue = new_queue(Maker(lambda: is_trained.wait(120)), num_batches=2, max_staleness=1, in_background=True)
    assert queue.get(0, 0).index == 0
    is_trained.set()
    assert queue.get(1, 1).metrics["version"] == 0
    queue.close()


def test_an_error_in_the_background_is_raised_when_the_batch_is_due(new_queue: NewQueue) -> None:
    def fail() -> None:
        raise RuntimeError("the server is gone")

    queue = new_queue(Maker(fail), max_staleness=1, in_background=True)
    queue.get(0, 0)
    with pytest.raises(RuntimeError, match="the server is gone"):
        queue.get(1, 1)
    queue.close()
