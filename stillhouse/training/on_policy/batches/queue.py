"""Hands out batches of rollouts in order; each is made once, however often the training is killed.

A batch is on disk before it is trained on. A restarted training finds there what was sampled since its last checkpoint,
by weights that no longer exist.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stillhouse.errors import StoreError
from stillhouse.training.on_policy.batches.batch import read_batch, write_batch
from stillhouse.training.on_policy.batches.groups import FinishedGroups
from stillhouse.training.on_policy.table import RolloutTable

_PREFIX: Final = "batch-"

MakeBatch = Callable[[int, int], RolloutTable]
"""Makes the batch of an index, by the weights of a version."""


@dataclass(eq=False)
class BatchQueue:
    """Hands out the batches of a training."""

    begin: MakeBatch
    folder: Path
    """Holds the batches."""

    def get(self, index: int, policy_version: int) -> RolloutTable:
        """Return batch `index`, which is made unless it is there. Raises what making a batch raises."""
        batch = stored_batch(self.folder, index)
        if batch is None:
            batch = self.begin(index, policy_version)
            self.keep(batch)
            FinishedGroups(self.folder, index).forget()
        return batch

    def keep(self, batch: RolloutTable) -> None:
        """Write a batch to disk, in place of the one before."""
        write_batch(_path(self.folder, batch.index), batch)

    def forget_before(self, index: int) -> None:
        """Delete batches that no checkpoint leads back to."""
        for path in self.folder.glob(f"{_PREFIX}*.parquet"):
            if int(path.stem.removeprefix(_PREFIX)) < index:
                path.unlink(missing_ok=True)


def stored_batch(folder: Path, index: int) -> RolloutTable | None:
    """Return a batch that was made before; None without one. Raises StoreError if it is damaged or another."""
    path = _path(folder, index)
    batch = read_batch(path) if path.exists() else None
    if batch is not None and batch.index != index:
        raise StoreError(
            f"{path}: holds batch {batch.index}, expected {index}. Delete it, and its rollouts are sampled again"
        )
    return batch


def _path(folder: Path, index: int) -> Path:
    return folder / f"{_PREFIX}{index:08d}.parquet"
