"""A teacher's scores of the rows, as the loss `kl` compares the student with them."""

from collections.abc import Sequence
from pathlib import Path

from stillhouse.errors import TrainingError
from stillhouse.inference.scoring.ledger import ScoreLedger
from stillhouse.training.head.scores import TopReference
from stillhouse.types import Sample


class SoftTargets:
    """Scores that a teacher gave each sample, in the ledger of the stage `scores`; raises StoreError if unreadable."""

    def __init__(self, folder: Path, top_k: int) -> None:
        self._ledger = ScoreLedger(folder, top_k)

    def reference(self, samples: Sequence[Sample]) -> TopReference:
        """Return the teacher at the targets, sample by sample; raise TrainingError if one has no scores."""
        keys = [self._ledger.key(sample) for sample in samples]
        found = self._ledger.find(keys)
        scores = []
        for key, sample in zip(keys, samples, strict=True):
            known = found.get(key)
            if known is None or known.top is None:
                raise TrainingError(
                    f"prompt {sample.prompt_id}: the teacher's scores of its {len(sample.token_ids)} tokens are not in "
                    f"{self._ledger.folder}, or are damaged. Run the same command with runtime.refresh: [scores]"
                )
            scores.append(known)
        return TopReference.of(scores)
