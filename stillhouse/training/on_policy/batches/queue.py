"""Hands out batches of rollouts in order; each is made once, however often the training is killed.

A batch is on disk before it is trained on. A restarted training finds there what was sampled since its last checkpoint,
and what was sampled ahead, by weights that no longer exist.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stillhouse.errors import StoreError
from stillhouse.training.on_policy.batches.batch import read_batch, write_batch
from stillhouse.training.on_policy.batches.groups import FinishedGroups
from stillhouse.training.on_policy.table import RolloutTable

logger = logging.getLogger(__name__)

_PREFIX: Final = "batch-"

MakeBatch = Callable[[], RolloutTable]
"""Samples one batch; in the background it must not read the student's weights."""


@dataclass(eq=False)
class BatchQueue:
    """Hands out the batches of a training."""

    begin: Callable[[int, int], MakeBatch]
    """Called in the training thread with the batch's index and the version of the weights."""
    folder: Path
    """Holds the batches."""
    num_batches: int
    """Of the whole training."""
    max_staleness: int = 0
    """Batches made ahead of the one handed out."""
    in_background: bool = False
    """Make the batch furthest ahead in a thread, while the one handed out is trained on."""

    def __post_init__(self) -> None:
        self._worker = ThreadPoolExecutor(1, "rollouts") if self.in_background and self.max_staleness else None
        self._pending: dict[int, Future[RolloutTable]] = {}
        self._current: RolloutTable | None = None

    def get(self, index: int, policy_version: int) -> RolloutTable:
        """Return batch `index`; batches ahead of it are made or begun first. Raises what making a batch raises."""
        if self._current is not None and self._current.index == index:
            return self._current
        last = min(index + self.max_staleness, self.num_batches - 1)
        for ahead in range(index, last + 1):
            if ahead in self._pending or self._path(ahead).exists():
                continue
            # A batch sampled in the background still needs the weights that it was given.
            wait(self._pending.values())
            maker = self.begin(ahead, policy_version)
            if self._worker is not None and ahead > index:
                self._pending[ahead] = self._worker.submit(self._make, ahead, maker)
            elif ahead == index:
                self._current = self._make(ahead, maker)
            else:
                self._make(ahead, maker)
        if index in self._pending:
            self._current = self._pending.pop(index).result()
        elif self._current is None or self._current.index != index:
            self._current = self._read(index)
        return self._current

    def keep(self, batch: RolloutTable) -> None:
        """Replace the batch that was handed out last, also on disk."""
        write_batch(self._path(batch.index), batch)
        self._current = batch

    def forget_before(self, index: int) -> None:
        """Delete batches that no checkpoint leads back to."""
        for path in self.folder.glob(f"{_PREFIX}*.parquet"):
            if int(path.stem.removeprefix(_PREFIX)) < index:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Cancel batches not yet begun and wait for the one in progress."""
        if self._worker is not None:
            self._worker.shutdown(wait=True, cancel_futures=True)

    def _read(self, index: int) -> RolloutTable:
        batch = read_batch(self._path(index))
        if batch.index != index:
            raise StoreError(
                f"{self._path(index)}: holds batch {batch.index}, expected {index}. Delete it, and its rollouts are "
                "sampled again"
            )
        return batch

    def _make(self, index: int, maker: MakeBatch) -> RolloutTable:
        batch = maker()
        write_batch(self._path(index), batch)
        FinishedGroups(self.folder, index).forget()
        return batch

    def _path(self, index: int) -> Path:
        return self.folder / f"{_PREFIX}{index:08d}.parquet"
