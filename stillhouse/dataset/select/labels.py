"""Labels as the filters see them: a column each, JSON opened, null for what was not measured.

All columns are backed by Arrow, so that a comparison with null is null and never drops a row.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import orjson
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from stillhouse.dataset.schema import COLUMNS, Kind
from stillhouse.types import JsonObject

PLAIN: Final = (
    "id", "prompt_id", "sample_index", "tag", "turns", "num_tool_calls", "num_tool_errors", "stop_reason",
    "completion_tokens", "verifier", "verified", "has_answer", "answer_chars", "sampled_chars", "language", "refusal",
    "repetition", "compression_ratio", "format_problem", "private_data", "objections", "num_tokens",
    "num_supervised_tokens", "template_problem", "student_nll", "student_pass_rate", "prompt_cluster", "duplicate_of",
    "duplicate_kind", "duplicate_source",
)  # fmt: skip
"""Columns of the schema that are taken as they are."""

OPENED: Final = ("scores", "judge", "contamination")
"""Columns of JSON, of which the filters see parts."""

_TEXT_OF: Final = {Kind.JSON: pa.string(), Kind.JSONS: pa.list_(pa.string())}
_TYPES: Final = {column.name: _TEXT_OF.get(column.kind, column.kind.arrow_type) for column in COLUMNS}


def score_column(name: str) -> str:
    """The column that holds a score in the frame."""
    return f"scores.{name}"


def opened_for(name: str) -> str:
    """The column of the schema that a score is in."""
    return "judge" if name.startswith("judge/") else "scores"


def labels_of_rows(rows: Sequence[JsonObject]) -> pd.DataFrame:
    """What the filters read of rows as `rows.candidate_row` gives them."""
    columns = {name: pa.array([row.get(name) for row in rows], _TYPES[name]) for name in (*PLAIN, *OPENED)}
    return pa.table(columns).to_pandas(types_mapper=pd.ArrowDtype)


def arrow_batch(labels: pd.DataFrame) -> pa.RecordBatch:
    """Columns of the schema, however pandas holds them, in its types."""
    names = [name for name in (*PLAIN, *OPENED) if name in labels.columns]
    table = pa.table({name: pa.array(labels[name], type=_TYPES[name], from_pandas=True) for name in names})
    return pa.RecordBatch.from_arrays([column.combine_chunks() for column in table.columns], names)


def label_frame(batch: pa.RecordBatch, scores: Collection[str]) -> pd.DataFrame:
    """The columns that filters and selection read, one row for each of `batch`.

    Args:
        batch: Columns of the schema by name, JSON as text or under Arrow's JSON type; those that are not there are
            null.
        scores: Names of the scores to open, each as the column `score_column(name)`.

    Returns:
        `PLAIN`, where `verified` is the judge's verdict for rows under the verifier `judge`; `longest_overlap`, the
        most words in a row that an evaluation set shares; the scores.
    """
    columns = {name: _column(batch, name) for name in PLAIN}
    columns["verified"] = _with_verdicts(columns["verified"], columns["verifier"], batch)
    columns["longest_overlap"] = _longest_overlap(_column(batch, "contamination"))
    columns |= _scores(batch, scores)
    return pa.table(columns).to_pandas(types_mapper=pd.ArrowDtype)


def names_of_scores(batch: pa.RecordBatch) -> set[str]:
    """Names of all scores in the columns `scores` and `judge`."""
    return {name for column in ("scores", "judge") for scores in _scores_of(batch, column) for name in scores}


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    if name not in batch.schema.names:
        return pa.nulls(batch.num_rows, _TYPES[name])
    return batch.column(name).cast(_TYPES[name])


def _with_verdicts(verified: pa.Array, verifier: pa.Array, batch: pa.RecordBatch) -> pa.Array:
    is_judged = pc.fill_null(pc.equal(verifier, "judge"), False)
    if not pc.any(is_judged).as_py():
        return verified
    asked = pc.if_else(is_judged, _column(batch, "judge"), None)
    return pc.if_else(is_judged, pa.array((one.get("verdict") for one in _opened(asked)), pa.bool_()), verified)


def _longest_overlap(contamination: pa.Array) -> pa.Array:
    longest = np.zeros(len(contamination), np.int64)
    hits = pc.list_flatten(contamination)
    lengths = np.array([hit["ngram"] for hit in _opened(hits)], np.int64)
    np.maximum.at(longest, pc.list_parent_indices(contamination).to_numpy(), lengths)
    return pa.array(longest, mask=contamination.is_null().to_numpy(zero_copy_only=False))


def _scores(batch: pa.RecordBatch, names: Collection[str]) -> dict[str, pa.Array]:
    found: dict[str, pa.Array] = {}
    for column in ("scores", "judge"):
        wanted = [name for name in names if opened_for(name) == column]
        rows = list(_scores_of(batch, column)) if wanted else []
        found |= {score_column(name): pa.array((row.get(name) for row in rows), pa.float64()) for name in wanted}
    return found


def _scores_of(batch: pa.RecordBatch, column: str) -> Iterator[Mapping[str, float | None]]:
    opened = _opened(_column(batch, column))
    return (one.get("scores") or {} for one in opened) if column == "judge" else opened


def _opened(texts: pa.Array) -> Iterator[dict[str, Any]]:
    return (orjson.loads(text) if text is not None else {} for text in texts.to_pylist())
