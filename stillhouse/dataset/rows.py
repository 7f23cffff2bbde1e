"""A trajectory as a row of a dataset, and rows as a Parquet file written piece by piece.

Arguments of a tool call become an object, which is what chat templates and trainers take; the column `arguments` keeps
them as the model wrote them.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from stillhouse.chat.parse import MALFORMED_CALL
from stillhouse.dataset.schema import (
    CANDIDATE_COLUMNS,
    JSON_COLUMNS,
    JSON_LIST_COLUMNS,
    LABEL_COLUMNS,
    Column,
    Kind,
    arrow_schema,
)
from stillhouse.dataset.totals import totals_of
from stillhouse.types import JsonObject, Message, PromptMetadata, Trajectory

_BATCH_ROWS: Final = 512
_GROUP_ROWS: Final = 1 << 16
_GROUP_BYTES: Final = 32 << 20
_LABELS: Final = tuple(column.name for column in LABEL_COLUMNS)


def candidate_row(
    trajectory: Trajectory, metadata: PromptMetadata | None, labels: Mapping[str, Any], sampling: str | None
) -> JsonObject:
    """The values of `CANDIDATE_COLUMNS` in their order, JSON columns as JSON text.

    Args:
        trajectory: Finished or failed.
        metadata: What came with its prompt, if anything.
        labels: Values by name of column, JSON columns as objects; columns that are not there become null.
        sampling: Hash of teacher, sampling and tools, where it is known.

    Raises:
        KeyError: `labels` names a column that is no label.
    """
    if unknown := labels.keys() - set(_LABELS):
        raise KeyError(f"no label columns: {', '.join(sorted(unknown))}")
    totals = totals_of(trajectory)
    row = {
        "id": trajectory.rollout_key,
        "prompt_id": trajectory.prompt_id,
        "sample_index": trajectory.sample_index,
        "messages": [_with_objects(message) for message in trajectory.messages],
        "tools": trajectory.tools,
        "arguments": [call["function"]["arguments"] for message in trajectory.messages for call in _calls(message)],
        "metadata": metadata.metadata if metadata else {},
        "expected_answer": metadata.expected_answer if metadata else None,
        "tag": metadata.tag if metadata else None,
        "teacher": trajectory.model,
        "sampling": sampling,
        "providers": totals.providers,
        "request_ids": [turn.request_id for turn in trajectory.turns if turn.request_id is not None],
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
        "error": trajectory.error,
        **labels,
    }
    return {column.name: _encoded(row.get(column.name), column.name) for column in CANDIDATE_COLUMNS}


def _with_objects(message: Message) -> JsonObject:
    """The message with the arguments of its calls as objects, where they are JSON objects."""
    if not message.get("tool_calls"):
        return dict(message)
    calls = [{**call, "function": _with_object(call["function"])} for call in _calls(message)]
    return {**message, "tool_calls": calls}


def _with_object(function: Mapping[str, Any]) -> JsonObject:
    if function["name"] == MALFORMED_CALL:
        return dict(function)
    return {**function, "arguments": _object(function["arguments"])}


def _object(arguments: str) -> JsonObject | str:
    """The object that `arguments` spells; the text itself where JSON's reader and writer would not give it back."""
    try:
        value = json.loads(arguments)
        # NaN, 1e999, integers beyond 64 bits and lone surrogates pass Python's reader, and would come back as null or
        # not at all.
        is_exact = isinstance(value, dict) and orjson.loads(orjson.dumps(value)) == value
    except (ValueError, TypeError, RecursionError):
        return arguments
    return value if is_exact else arguments


def _calls(message: Message) -> Sequence[Any]:
    return message.get("tool_calls") or ()


def _encoded(value: Any, name: str) -> Any:
    if value is None:
        return None
    if name in JSON_LIST_COLUMNS:
        return [_json(item) for item in value]
    return _json(value) if name in JSON_COLUMNS else value


def _json(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY).decode()


class TableWriter:
    """A Parquet file written in row groups, so that memory stays bounded whatever the number of rows.

    The bytes depend on rows and columns alone. The file is complete once the context is left.

    Args:
        path: The file, which is not written atomically: it belongs to a folder that is published whole.
        columns: Its columns.
    """

    def __init__(self, path: Path, columns: Sequence[Column]) -> None:
        self.num_rows = 0
        self._columns = columns
        self._schema = arrow_schema(columns)
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")
        self._rows: list[Mapping[str, Any]] = []
        self._batches: list[pa.RecordBatch] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self._take_rows()
            self._write_group()
        self._writer.close()

    def write(self, row: Mapping[str, Any]) -> None:
        """Adds a row, JSON columns as JSON text."""
        self._rows.append(row)
        self.num_rows += 1
        if len(self._rows) == _BATCH_ROWS:
            self._take_rows()

    def _take_rows(self) -> None:
        if self._rows:
            arrays = [_array([row[column.name] for row in self._rows], column.kind) for column in self._columns]
            self._batches.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
            self._rows.clear()
            if sum(batch.nbytes for batch in self._batches) >= _GROUP_BYTES:
                self._write_group()

    def _write_group(self) -> None:
        if self._batches:
            self._writer.write_table(pa.Table.from_batches(self._batches), row_group_size=_GROUP_ROWS)
            self._batches.clear()


def _array(values: list[Any], kind: Kind) -> pa.Array:
    if kind is Kind.JSONS:
        return pa.array(values, type=pa.list_(pa.string())).cast(kind.arrow_type)
    return pa.array(values, type=kind.arrow_type)
