"""The file of a batch of rollouts: Parquet, one row per trajectory, with lists of its tokens."""

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stillhouse.errors import StoreError
from stillhouse.inference.scoring.scores import TopLogprobs
from stillhouse.store.atomic import replaced_atomically
from stillhouse.training.on_policy.table import RolloutTable
from stillhouse.types import Sample

_FACTS: Final = b"stillhouse.batch"
_TOKENS: Final = (
    *("token_ids", "loss_mask", "sampling_logprobs", "policy_version"),
    *("teacher_logprobs", "advantages", "old_logprobs"),
)
_TEXTS: Final = ("prompt_id", "tag", "teacher", "route")
_FACTS_OF_BATCH: Final = ("index", "num_parts", "metrics", "untaken")
_NUMBERS: Final = ("kl_coef", "weight", "part")


def write_batch(path: Path, table: RolloutTable) -> None:
    """Write the batch atomically; numbers are stored exactly."""
    columns = {name: _lists(table, getattr(table, name)) for name in _TOKENS}
    columns |= {name: pa.array(getattr(table, name), pa.string()) for name in _TEXTS}
    columns |= {name: pa.array(getattr(table, name)) for name in _NUMBERS}
    views = [view and {"token_ids": view.token_ids, "loss_mask": view.loss_mask} for view in table.teacher_view]
    # Parquet has no matrices: the rows of one are written one after the other. A column has one precision.
    dtype = np.result_type(np.float16, *(top.log_tail_N.dtype for top in table.teacher_top if top is not None))
    types = {"ids_NK": np.int32, "logprobs_NK": dtype, "log_tail_N": dtype}
    tops = [top and {key: getattr(top, key).ravel().astype(types[key]) for key in types} for top in table.teacher_top]
    columns |= {"teacher_view": pa.array(views), "teacher_top": pa.array(tops)}
    facts = {name: getattr(table, name) for name in _FACTS_OF_BATCH}
    with replaced_atomically(path) as work:
        # Dictionaries of log-probabilities, of which hardly two are alike, would take most of the time.
        stored = pa.table(columns).replace_schema_metadata({_FACTS: json.dumps(facts)})
        pq.write_table(stored, work, use_dictionary=["policy_version.list.element"])


def read_batch(path: Path) -> RolloutTable:
    """Return the batch as it was written; raise StoreError if the file is damaged, or no batch."""
    try:
        stored = pq.read_table(path)
        facts = json.loads((stored.schema.metadata or {})[_FACTS])
        columns: dict[str, Any] = {name: stored.column(name).to_pylist() for name in _TEXTS}
        columns |= {name: stored.column(name).to_numpy() for name in _NUMBERS}
        lengths = stored.column("token_ids").combine_chunks().value_lengths().to_numpy().astype(np.int64)
        columns |= {name: _column(stored.column(name).combine_chunks(), lengths) for name in _TOKENS}
        if columns["teacher_logprobs"] is None:
            columns["teacher_logprobs"] = np.full(lengths.sum(), np.nan)
        return RolloutTable(
            facts["index"],
            facts["num_parts"],
            lengths,
            metrics=facts["metrics"],
            untaken=facts.get("untaken", []),
            teacher_view=[
                None if view is None else Sample(**view, prompt_id=prompt_id)
                for view, prompt_id in zip(_structs(stored, "teacher_view"), columns["prompt_id"], strict=True)
            ],
            teacher_top=[None if top is None else _top(**top) for top in _structs(stored, "teacher_top")],
            **columns,
        )
    except (OSError, KeyError, ValueError, TypeError, AttributeError, pa.ArrowException) as error:
        raise StoreError(
            f"{path}: not a batch of rollouts: {error}. Delete it, and its rollouts are sampled again"
        ) from error


def _lists(table: RolloutTable, values: np.ndarray | None) -> pa.Array:
    """Return a column of tokens as lists; None for trajectories of NaN."""
    if values is None:
        return pa.nulls(len(table))
    is_known = ~np.isnan(values[table.starts[:-1]])
    offsets = np.concatenate([[0], np.cumsum(np.where(is_known, table.lengths, 0))])
    known = values if is_known.all() else values[table.spread(is_known)]
    return pa.ListArray.from_arrays(offsets.astype(np.int32), pa.array(known), mask=pa.array(~is_known))


def _column(lists: pa.Array, lengths: np.ndarray) -> np.ndarray | None:
    """Return lists as a column of tokens; None where there are none, NaN for trajectories without."""
    if pa.types.is_null(lists.type):
        return None
    if not pa.types.is_list(lists.type):
        # Older files have one version a trajectory.
        return np.repeat(lists.to_numpy(), lengths).astype(np.int32)
    known = lists.flatten().to_numpy(zero_copy_only=False)
    if not lists.null_count:
        return known
    values = np.full(lengths.sum(), np.nan)
    values[np.repeat(lists.is_valid().to_numpy(zero_copy_only=False), lengths)] = known
    return values


def _structs(stored: pa.Table, name: str) -> list[dict[str, Any] | None]:
    # Older files lack the most probable tokens.
    rows = stored.column(name) if name in stored.column_names else pa.nulls(stored.num_rows)
    return [
        {key: row[key].values.to_numpy(zero_copy_only=False) for key in row} if row.is_valid else None for row in rows
    ]


def _top(ids_NK: np.ndarray, logprobs_NK: np.ndarray, log_tail_N: np.ndarray) -> TopLogprobs:
    shape = (len(log_tail_N), -1)
    return TopLogprobs(ids_NK.reshape(shape), logprobs_NK.reshape(shape), log_tail_N)
