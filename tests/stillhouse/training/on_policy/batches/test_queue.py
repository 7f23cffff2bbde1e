from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest

from stillhouse.errors import StoreError
from stillhouse.training.on_policy.batches.batch import RolloutBatch
from stillhouse.training.on_policy.batches.queue import BatchQueue


class Maker:
    """Makes empty batches, and notes of which weights."""

    def __init__(self) -> None:
        self.made: list[tuple[int, int]] = []

    def begin(self, index: int, policy_version: int) -> Callable[[], RolloutBatch]:
        def make() -> RolloutBatch:
            self.made.append((index, policy_version))
            return RolloutBatch(index, policy_version, [[]])

        return make


def test_each_batch_is_of_the_newest_weights(tmp_path: Path) -> None:
    maker = Maker()
    queue = BatchQueue(maker.begin, tmp_path, num_batches=3)
    assert [queue.get(index, 2 * index).policy_version for index in range(3)] == [0, 2, 4]
    assert queue.get(2, 5).policy_version == 4


def test_batches_are_made_ahead_but_not_behind_the_end(tmp_path: Path) -> None:
    maker = Maker()
    queue = BatchQueue(maker.begin, tmp_path, num_batches=4, max_staleness=2)
    versions = [queue.get(index, index).policy_version for index in range(4)]
    assert maker.made == [(0, 0), (1, 0), (2, 0), (3, 1)]
    assert versions == [0, 0, 0, 1]


def test_a_killed_training_makes_nothing_again(tmp_path: Path) -> None:
    first = BatchQueue(Maker().begin, tmp_path, num_batches=9, max_staleness=1)
    for index in range(3):
        first.get(index, index)
    maker = Maker()
    again = BatchQueue(maker.begin, tmp_path, num_batches=9, max_staleness=1)
    assert [again.get(index, index).policy_version for index in range(1, 5)] == [0, 1, 2, 3]
    assert maker.made == [(4, 3), (5, 4)]


def test_a_batch_in_the_place_of_another_is_refused(tmp_path: Path) -> None:
    queue = BatchQueue(Maker().begin, tmp_path, num_batches=3)
    for index in range(2):
        queue.get(index, index)
    (tmp_path / "batch-00000000.parquet").rename(tmp_path / "batch-00000001.parquet")
    with pytest.raises(StoreError, match=r"batch-00000001\.parquet: holds batch 0, expected 1"):
        BatchQueue(Maker().begin, tmp_path, num_batches=3).get(1, 1)


def test_what_more_is_known_of_a_batch_is_kept(tmp_path: Path) -> None:
    queue = BatchQueue(Maker().begin, tmp_path, num_batches=2)
    queue.get(0, 0)
    queue.keep(RolloutBatch(0, 0, [[]], {"old": 1.0}))
    assert queue.get(0, 0).metrics == {"old": 1.0}
    assert BatchQueue(Maker().begin, tmp_path, num_batches=2).get(0, 0).metrics == {"old": 1.0}


def test_batches_that_no_checkpoint_leads_back_to_are_deleted(tmp_path: Path) -> None:
    queue = BatchQueue(Maker().begin, tmp_path, num_batches=9)
    for index in range(4):
        queue.get(index, index)
    queue.forget_before(2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["batch-00000002.parquet", "batch-00000003.parquet"]


def test_the_next_batch_is_made_while_this_one_is_trained_on(tmp_path: Path) -> None:
    is_trained = Event()

    def begin(index: int, policy_version: int) -> Callable[[], RolloutBatch]:
        def make() -> RolloutBatch:
            if index > 0:
                assert is_trained.wait(10)
            return RolloutBatch(index, policy_version, [[]])

        return make

    queue = BatchQueue(begin, tmp_path, num_batches=2, max_staleness=1, in_background=True)
    assert queue.get(0, 0).index == 0
    is_trained.set()
    assert queue.get(1, 1).policy_version == 0
    queue.close()


def test_an_error_in_the_background_is_raised_when_the_batch_is_due(tmp_path: Path) -> None:
    def begin(index: int, policy_version: int) -> Callable[[], RolloutBatch]:
        def make() -> RolloutBatch:
            if index == 1:
                raise RuntimeError("the server is gone")
            return RolloutBatch(index, policy_version, [[]])

        return make

    queue = BatchQueue(begin, tmp_path, num_batches=3, max_staleness=1, in_background=True)
    queue.get(0, 0)
    with pytest.raises(RuntimeError, match="the server is gone"):
        queue.get(1, 1)
    queue.close()
