"""A trajectory as a row of a dataset, and rows as a Parquet file written piece by piece."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from stillhouse.dataset.labels import Labels
from stillhouse.dataset.schema import COLUMNS, Kind, dataset_schema
from stillhouse.dataset.totals import totals_of
from stillhouse.types import JsonObject, PromptMetadata, Trajectory

_GROUP_ROWS: Final = 2048
_GROUP_CHARS: Final = 32 << 20


def row_of(
    trajectory: Trajectory,
    metadata: PromptMetadata | None,
    labels: Labels,
    *,
    drop_reasons: Sequence[str] | None,
    split: str | None,
) -> JsonObject:
    """The values of `COLUMNS`, JSON columns as JSON text. `drop_reasons` is None before selection."""
    totals = totals_of(trajectory)
    rendering = labels.rendering
    return {
        "id": trajectory.rollout_key,
        "prompt_id": trajectory.prompt_id,
        "sample_index": trajectory.sample_index,
        "messages": [_json(message) for message in trajectory.messages],
        "tools": [_json(tool) for tool in trajectory.tools],
        "metadata": _json(metadata.metadata if metadata else {}),
        "expected_answer": metadata.expected_answer if metadata else None,
        "tag": metadata.tag if metadata else None,
        "teacher": trajectory.model,
        "providers": totals.providers,
        "turns": len(trajectory.turns),
        "num_tool_calls": totals.num_tool_calls,
        "num_tool_errors": totals.num_tool_errors,
        "stop_reason": trajectory.stop_reason.value,
        "prompt_tokens": totals.prompt_tokens,
        "completion_tokens": totals.completion_tokens,
        "reasoning_tokens": totals.reasoning_tokens,
        "cached_tokens": totals.cached_tokens,
        "cost_usd": totals.cost_usd,
        "latency_s": totals.latency_s,
        "verified": labels.verified,
        "kept": None if drop_reasons is None else not drop_reasons,
        "drop_reasons": drop_reasons,
        "split": split,
        "num_tokens": rendering.num_tokens if rendering else None,
        "num_supervised_tokens": rendering.num_supervised_tokens if rendering else None,
        "error": _json(_error(trajectory, labels)),
    }


def _error(trajectory: Trajectory, labels: Labels) -> JsonObject | None:
    if trajectory.error is not None:
        return dict(trajectory.error)
    problem = labels.rendering.problem if labels.rendering else None
    return None if problem is None else {"kind": "template", "message": problem}


def _json(value: Any) -> str | None:
    return None if value is None else orjson.dumps(value).decode()


class RowWriter:
    """A Parquet file of `COLUMNS`, written in row groups so that memory stays bounded whatever the number of rows.

    The bytes depend on the rows alone. The file is complete once the context is left.
    """

    def __init__(self, path: Path) -> None:
        self.num_rows = 0
        self._schema = dataset_schema()
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")
        self._rows: list[JsonObject] = []
        self._num_chars = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self._flush()
        self._writer.close()

    def write(self, row: JsonObject) -> None:
        """Adds a row that `row_of` made."""
        self._rows.append(row)
        self._num_chars += sum(map(len, row["messages"])) + sum(map(len, row["tools"]))
        self.num_rows += 1
        if len(self._rows) >= _GROUP_ROWS or self._num_chars >= _GROUP_CHARS:
            self._flush()

    def _flush(self) -> None:
        if not self._rows:
            return
        arrays = [_array([row[column.name] for row in self._rows], column.kind) for column in COLUMNS]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema))
        self._rows.clear()
        self._num_chars = 0


def _array(values: list[Any], kind: Kind) -> pa.Array:
    if kind is Kind.JSONS:
        return pa.array(values, type=pa.list_(pa.string())).cast(kind.arrow_type)
    return pa.array(values, type=kind.arrow_type)
