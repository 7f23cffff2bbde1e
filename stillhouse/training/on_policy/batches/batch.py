"""A batch of rollouts, and its file."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stillhouse.errors import StoreError
from stillhouse.inference.scoring.scores import TopLogprobs
from stillhouse.store.atomic import replaced_atomically
from stillhouse.training.on_policy.scored import ScoredSample, TeacherView

SKIPPED_TOKENS: Final = "skipped_tokens"
"""Metric of a batch: sampled tokens that bear no loss (`on_policy.skip_first_n_tokens`)."""
_FACTS: Final = b"stillhouse.batch"


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """The trajectories of some prompts, sampled from one version of the student, scored and rewarded."""

    index: int
    """Its place among the batches of the training, from 0."""
    policy_version: int
    """Optimiser updates of the weights that sampled it."""
    parts: Sequence[Sequence[ScoredSample]]
    """The samples of each substep: the groups of some of the prompts."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the batch, without prefix."""

    @property
    def num_sampled_tokens(self) -> int:
        """Return the number of tokens the student sampled."""
        num_skipped = int(self.metrics.get(SKIPPED_TOKENS, 0))
        return num_skipped + sum(sum(sample.loss_mask) for part in self.parts for sample in part)


def write_batch(path: Path, batch: RolloutBatch) -> None:
    """Write the batch atomically as Parquet, one row per trajectory; numbers are stored exactly."""
    rows = [{**_row(sample), "part": number} for number, part in enumerate(batch.parts) for sample in part]
    facts = {
        "index": batch.index,
        "policy_version": batch.policy_version,
        "num_parts": len(batch.parts),
        "metrics": dict(batch.metrics),
    }
    table = pa.Table.from_pylist(rows).replace_schema_metadata({_FACTS: json.dumps(facts)})
    with replaced_atomically(path) as work:
        pq.write_table(table, work)


def read_batch(path: Path) -> RolloutBatch:
    """Return the batch as it was written; raise StoreError if the file is damaged, or no batch."""
    try:
        table = pq.read_table(path)
        facts = json.loads((table.schema.metadata or {})[_FACTS])
        parts: list[list[ScoredSample]] = [[] for _ in range(facts["num_parts"])]
        for row in table.to_pylist():
            parts[row.pop("part")].append(_sample(row))
    except (OSError, KeyError, ValueError, TypeError, pa.ArrowException) as error:
        raise StoreError(
            f"{path}: not a batch of rollouts: {error}. Delete it, and its rollouts are sampled again"
        ) from error
    return RolloutBatch(facts["index"], facts["policy_version"], parts, facts["metrics"])


def _row(sample: ScoredSample) -> dict[str, Any]:
    """Return a row without matrices, which Parquet does not have: the rows of one are written one after the other."""
    # Not `asdict`, which copies each number of each list.
    row = {field.name: getattr(sample, field.name) for field in fields(sample)}
    view, top = sample.teacher_view, sample.teacher_top
    row["teacher_view"] = None if view is None else asdict(view)
    row["teacher_top"] = None if top is None else {name: getattr(top, name).ravel() for name in TopLogprobs.__slots__}
    return row


def _sample(row: dict[str, Any]) -> ScoredSample:
    view, top = row["teacher_view"], row.get("teacher_top")
    row["teacher_view"] = None if view is None else TeacherView(**view)
    if top is not None:
        shape = (len(top["log_tail_N"]), -1)
        ids, logprobs = np.array(top["ids_NK"], np.int32), np.array(top["logprobs_NK"], np.float16)
        log_tail_N = np.array(top["log_tail_N"], np.float16)
        row["teacher_top"] = TopLogprobs(ids.reshape(shape), logprobs.reshape(shape), log_tail_N)
    # Of versions that weighed tokens by themselves.
    row.pop("token_weights", None)
    return ScoredSample(**row)
