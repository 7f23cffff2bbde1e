"""A dataset's Parquet files by row, with JSON columns as JSON objects again, or by column, with those as text."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from stillhouse.dataset.schema import JSON_COLUMNS, JSON_LIST_COLUMNS
from stillhouse.errors import InputError
from stillhouse.types import JsonObject, Message

SplitName = Literal["train", "validation", "rejected"]
_BATCH_ROWS: Final = 1024
"""Rows that are read whole."""
_COLUMN_ROWS: Final = 1 << 14
"""Rows of which some columns are read."""


def read_rows(folder: Path, split: SplitName) -> Iterator[JsonObject]:
    """The rows of one file of a dataset, in order; messages, tools, metadata and error as they were stored.

    Raises:
        InputError: the file is missing or damaged.
    """
    return read_file(folder / f"{split}.parquet")


def read_file(path: Path, columns: Sequence[str] | None = None) -> Iterator[JsonObject]:
    """As `read_rows`, for a file that may lie anywhere; `columns` are those wanted, None for all.

    Raises:
        InputError: the file is missing, is damaged, or lacks a column.
    """
    for batch in iter_columns(path, columns, batch_rows=_BATCH_ROWS):
        for row in batch.to_pylist():
            yield {name: _decoded(name, value) for name, value in row.items()}


def iter_columns(
    path: Path, columns: Sequence[str] | None, *, batch_rows: int = _COLUMN_ROWS
) -> Iterator[pa.RecordBatch]:
    """Some columns of a file, in the order asked for, or all for None. JSON is text; nothing else is read.

    Raises:
        InputError: the file is missing, is damaged, or lacks a column.
    """
    try:
        # With `pre_buffer` all row groups that were read stay in memory until the file is closed.
        with pq.ParquetFile(path, pre_buffer=False) as file:
            if missing := set(columns or ()).difference(file.schema_arrow.names):
                raise InputError(f"dataset file {path} lacks {', '.join(sorted(missing))}: build the dataset again")
            for batch in file.iter_batches(batch_rows, columns=columns):
                yield pa.RecordBatch.from_arrays([_plain(column) for column in batch.columns], batch.schema.names)
    except (OSError, pa.ArrowException) as error:
        raise InputError(
            f"dataset file {path} cannot be read: {error}; expected a file that the dataset stage wrote"
        ) from error


def original_messages(row: JsonObject) -> list[Message]:
    """The messages of a row with the arguments of tool calls as the model wrote them, spelling and all."""
    written = iter(row["arguments"])
    messages: list[Any] = []
    for message in row["messages"]:
        calls = message.get("tool_calls")
        if calls:
            message = {**message, "tool_calls": [_as_written(call, next(written)) for call in calls]}
        messages.append(message)
    return messages


def _as_written(call: JsonObject, arguments: str | None) -> JsonObject:
    # None stands where the endpoint wrote no text, and the call is as it was.
    return call if arguments is None else {**call, "function": {**call["function"], "arguments": arguments}}


def _plain(column: pa.Array) -> pa.Array:
    """JSON as text: compute functions do not take the extension type."""
    if isinstance(column.type, pa.JsonType):
        return column.storage
    if pa.types.is_list(column.type) and isinstance(column.type.value_type, pa.JsonType):
        return column.cast(pa.list_(pa.string()))
    return column


def _decoded(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name in JSON_LIST_COLUMNS:
        return [orjson.loads(item) for item in value]
    return orjson.loads(value) if name in JSON_COLUMNS else value
