from collections.abc import Callable
from pathlib import Path

import pytest

from stillhouse.errors import StoreError
from stillhouse.training.on_policy.batches.queue import BatchQueue
from stillhouse.training.on_policy.table import RolloutTable
from tests.stillhouse.training.on_policy.tables import table_of


class Maker:
    """Makes empty batches, and notes of which weights."""

    def __init__(self) -> None:
        self.made: list[tuple[int, int]] = []

    def begin(self, index: int, policy_version: int) -> RolloutTable:
        self.made.append((index, policy_version))
        return table_of([], index=index, version=policy_version)


NewQueue = Callable[..., BatchQueue]


@pytest.fixture
def new_queue(tmp_path: Path) -> NewQueue:
    """Makes queues of one folder."""

    def make(maker: Maker | None = None) -> BatchQueue:
        return BatchQueue((maker or Maker()).begin, tmp_path)

    return make


def test_each_batch_is_of_the_newest_weights(new_queue: NewQueue) -> None:
    queue = new_queue()
    assert [queue.get(index, 2 * index).metrics["version"] for index in range(3)] == [0, 2, 4]
    assert queue.get(2, 5).metrics["version"] == 4


def test_a_killed_training_makes_nothing_again(new_queue: NewQueue) -> None:
    first = new_queue()
    for index in range(3):
        first.get(index, index)
    maker = Maker()
    again = new_queue(maker)
    assert [again.get(index, index + 7).metrics["version"] for index in range(1, 5)] == [1, 2, 10, 11]
    assert maker.made == [(3, 10), (4, 11)]


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
