"""The job and the record of one SFT training."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.frame.training import TrainingJob, TrainingRecord
from stillhouse.training.loop.row_order import Mixture


@dataclass(frozen=True, slots=True, kw_only=True)
class SftJob(TrainingJob):
    """One SFT training."""

    with_losses: bool = False
    """Log the loss of every step, where that is not done anyhow."""

    def order(self, num_rows: int) -> Mixture:
        """Which of the rows each step trains on."""
        num_epochs = -(-self.num_steps * self.batch_size // num_rows)
        return Mixture((num_rows,), (1.0,), self.batch_size, num_epochs, seed=0)


@dataclass(slots=True)
class SftRecord(TrainingRecord):
    """What an SFT training measured."""

    rows: str = ""
    """Fingerprint of token ids and masks in the order of training; empty where a side packs before it trains."""


def fingerprint(rows: Iterable[tuple[Sequence[int], Sequence[bool]]]) -> str:
    """Of token ids and loss masks up to the last target: our rows end there, TRL's with the newline of the template."""
    digest = hashlib.sha256()
    for ids, mask in rows:
        end = max(index for index, is_target in enumerate(mask) if is_target) + 1
        digest.update(json.dumps([list(ids[:end]), [int(target) for target in mask[:end]]]).encode())
    return digest.hexdigest()[:16]
