"""Rollouts that the student made and teachers scored before the training (`on_policy.source: rollouts`).

Lightning OPD (arXiv 2604.13010): the student that SFT left is sampled once, its teacher scores the samples once, and
training goes over them with no teacher alive. The advantage of a token, log p_teacher - log p_student, follows the
student as it is trained; its ratio to the student that sampled is known, so that `importance_sampling` corrects each
token for the drift, and `reinforce` does not; `log_ratio_mean` and `staleness` show it. The condition, which the paper
calls teacher consistency: SFT and scores are of the same teacher.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from stillhouse.errors import StoreError
from stillhouse.store.atomic import write_atomic
from stillhouse.store.fingerprint import canonical_json
from stillhouse.training.on_policy.batches.batch import read_batch, write_batch
from stillhouse.training.on_policy.table import RolloutTable
from stillhouse.types import JsonObject

FACTS_FILE: Final = "recorded.json"


class RecordedRollouts:
    """Batches in a folder that `write_facts` completed, gone through in their order again and again.

    Raises StoreError if the folder cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            stored = json.loads((folder / FACTS_FILE).read_bytes())
            self.facts: JsonObject = stored["facts"]
            """As the training that recorded them would have had them."""
            self.routes: list[str] = stored["routes"]
            self._num_batches: int = stored["num_batches"]
        except (OSError, ValueError, KeyError) as error:
            raise StoreError(
                f"{folder / FACTS_FILE}: cannot be read: {error}. Run the same command with runtime.refresh: "
                "[student_rollouts]"
            ) from error

    def begin(self, index: int, policy_version: int) -> RolloutTable:
        """Return batch `index` of a training, whose samples are of the student before it."""
        batch = read_batch(self._folder / _name(index % self._num_batches))
        # The seconds of sampling and scoring were another stage's.
        metrics = {name: value for name, value in batch.metrics.items() if not name.endswith("_s")}
        return replace(batch, index=index, metrics=metrics)


def write_recorded(folder: Path, batch: RolloutTable) -> None:
    """Write a batch for a training."""
    write_batch(folder / _name(batch.index), batch)


def write_facts(folder: Path, num_batches: int, routes: Sequence[str], facts: JsonObject) -> None:
    """Complete a folder of batches: values by which the KL is reported, facts of teachers and prompts."""
    stored = {"num_batches": num_batches, "routes": list(routes), "facts": facts}
    write_atomic(folder / FACTS_FILE, canonical_json(stored))


def _name(number: int) -> str:
    return f"recorded-{number:08d}.parquet"
