"""Filters over columns: each decides from labels and limits alone which rows should not be trained on.

They look at one row at a time, so that the same filters decide while trajectories are still being sampled. Labels are
columns backed by Arrow, null for what was not measured: a comparison with null is null and never drops a row.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from stillhouse.config import DatasetConfig
from stillhouse.dataset.schema import COLUMNS
from stillhouse.dataset.select.reasons import BITS
from stillhouse.labels import FILTERS
from stillhouse.labels.scores import score_column
from stillhouse.types import JsonObject

PLAIN: Final = tuple(
    dict.fromkeys(
        (
            *("id", "prompt_id", "sample_index", "tag", "num_tool_calls", "completion_tokens", "verifier"),
            *("sampled_chars", "prompt_cluster", "duplicate_of"),
            *(column for rule in FILTERS for column in rule.reads),
        )
    )
)
"""Columns of the schema that filters and selection read as they are."""

_TYPES: Final = {column.name: column.kind.storage_type for column in COLUMNS}


def score_source(name: str) -> str:
    """Return the column of the schema that holds a score."""
    return "judge" if name.startswith("judge/") else "scores"


def label_batch(rows: Sequence[JsonObject]) -> pa.RecordBatch:
    """Return the label columns of rows as `rows.candidate_row` gives them."""
    names = [*PLAIN, "scores", "judge", "contamination"]
    return pa.RecordBatch.from_arrays(
        [pa.array([row.get(name) for row in rows], _TYPES[name]) for name in names], names
    )


def label_frame(batch: pa.RecordBatch, scores: Collection[str]) -> pd.DataFrame:
    """Return the columns that filters and selection read, one row for each of `batch`.

    `batch` has columns of the schema, JSON as text or under Arrow's JSON type; missing ones become null. The result has
    `PLAIN`, with the judge's verdict as `verified` for rows under the verifier `judge`; `longest_overlap`, the longest
    n-gram shared with an evaluation set; and `score_column(name)` for each of `scores`.
    """
    columns = {name: _column(batch, name) for name in PLAIN}
    columns["verified"] = _with_verdicts(columns["verified"], columns["verifier"], batch)
    columns["longest_overlap"] = _longest_overlap(_column(batch, "contamination"))
    for source in ("scores", "judge"):
        if names := [name for name in scores if score_source(name) == source]:
            rows = list(_scores_of(batch, source))
            columns |= {score_column(name): pa.array((row.get(name) for row in rows), pa.float64()) for name in names}
    return pa.table(columns).to_pandas(types_mapper=pd.ArrowDtype)


def score_names_in(batch: pa.RecordBatch) -> set[str]:
    """Return names of all scores in the columns `scores` and `judge`."""
    return {name for column in ("scores", "judge") for scores in _scores_of(batch, column) for name in scores}


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    if name not in batch.schema.names:
        return pa.nulls(batch.num_rows, _TYPES[name])
    return batch.column(name).cast(_TYPES[name])


def _with_verdicts(verified: pa.Array, verifier: pa.Array, batch: pa.RecordBatch) -> pa.Array:
    is_judged = pc.fill_null(pc.equal(verifier, "judge"), False)
    if not pc.any(is_judged).as_py():
        return verified
    judgements = _parsed(pc.if_else(is_judged, _column(batch, "judge"), None))
    return pc.if_else(is_judged, pa.array((row.get("verdict") for row in judgements), pa.bool_()), verified)


def _longest_overlap(contamination: pa.Array) -> pa.Array:
    longest = np.zeros(len(contamination), np.int64)
    hits = pc.list_flatten(contamination)
    lengths = np.array([hit["ngram"] for hit in _parsed(hits)], np.int64)
    np.maximum.at(longest, pc.list_parent_indices(contamination).to_numpy(), lengths)
    return pa.array(longest, mask=contamination.is_null().to_numpy(zero_copy_only=False))


def _scores_of(batch: pa.RecordBatch, column: str) -> Iterator[Mapping[str, float | None]]:
    rows = _parsed(_column(batch, column))
    return (row.get("scores") or {} for row in rows) if column == "judge" else rows


def _parsed(texts: pa.Array) -> Iterator[dict[str, Any]]:
    return (orjson.loads(text) if text is not None else {} for text in texts.to_pylist())


def passes(rows: Sequence[JsonObject], config: DatasetConfig, max_tokens: int | None) -> list[bool]:
    """Return whether each row passes all filters, before choices among rows; a missing column was not measured.

    `max_tokens` is `student.max_length`, or None where rows are not rendered.
    """
    labels = label_frame(label_batch(rows), config.score_names)
    return [bool(bits == 0) for bits in drop_bits(labels, config.limits, max_tokens)]


def drop_bits(labels: pd.DataFrame, limits: Mapping[str, Any], max_tokens: int | None) -> npt.NDArray[np.uint64]:
    """Return the drop reasons of each row of a `label_frame` as a bit mask, by the `limits` that are set."""
    bits = np.zeros(len(labels), np.uint64)
    for rule in FILTERS:
        if rule.limit is not None and rule.limit.key not in limits:
            continue
        drops = rule.drops(labels, max_tokens if rule.limit is None else limits[rule.limit.key])
        if drops is not None:
            bits[drops.to_numpy(dtype=bool, na_value=False)] |= np.uint64(BITS[rule.reason.name])
    return bits
