"""One queue of batches for several processes: the first makes and keeps them, with the help of the others."""

from dataclasses import dataclass

from stillhouse.training.on_policy.batches.queue import BatchQueue, MakeBatch
from stillhouse.training.on_policy.table import RolloutTable
from stillhouse.training.ranks import Ranks


def led(ranks: Ranks, begin: MakeBatch) -> MakeBatch:
    """Return `begin` of the first process, which has the others, in `SharedBatches.get`, begin the same batch."""

    def tell(index: int, policy_version: int) -> RolloutTable:
        ranks.broadcast((index, policy_version))
        return begin(index, policy_version)

    return tell


@dataclass(eq=False)
class SharedBatches:
    """Hands out the same batches in every process; what is called is called in all of them."""

    ranks: Ranks
    begin: MakeBatch
    """How the others help to make a batch."""
    queue: BatchQueue | None
    """In the first process, with `begin` led."""

    def __post_init__(self) -> None:
        self._current: RolloutTable | None = None

    def get(self, index: int, policy_version: int) -> RolloutTable:
        """Return batch `index`; see `BatchQueue.get`."""
        if self._current is None or self._current.index != index:
            if self.queue is not None:
                self._current = self.ranks.broadcast(self.queue.get(index, policy_version))
            else:
                told: RolloutTable | tuple[int, int] = self.ranks.broadcast(None)
                while not isinstance(told, RolloutTable):
                    self.begin(*told)
                    told = self.ranks.broadcast(None)
                self._current = told
        return self._current

    def keep(self, batch: RolloutTable) -> None:
        """Replace the batch that was handed out last, also on disk."""
        self._current = batch
        if self.queue is not None:
            self.queue.keep(batch)

    def forget_before(self, index: int) -> None:
        """Delete batches that no checkpoint leads back to."""
        if self.queue is not None:
            self.queue.forget_before(index)
