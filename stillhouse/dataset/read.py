"""Reads a dataset's Parquet files by row, with JSON columns parsed, or by column, with those as text."""

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
"""Rows of a batch with all columns."""
_COLUMN_ROWS: Final = 1 << 14
"""Rows of a batch with some columns."""


def read_rows(folder: Path, split: SplitName) -> Iterator[JsonObject]:
    """The rows of one file of a dataset in order, JSON columns parsed.

    Raises:
        InputError: the file is missing or damaged.
    """
    return read_file(folder / f"{split}.parquet")


def read_file(path: Path, columns: Sequence[str] | None = None) -> Iterator[JsonObject]:
    """As `read_rows` for any path; `columns` None reads all.

    Raises:
        InputError: the file is missing, is damaged, or lacks a column.
    """
    for batch in iter_columns(path, columns, batch_rows=_BATCH_ROWS):
        for row in batch.to_pylist():
            yield {name: _decoded(name, value) for name, value in row.items()}


def iter_columns(
    path: Path, columns: Sequence[str] | None, *, batch_rows: int = _COLUMN_ROWS
) -> Iterator[pa.RecordBatch]:
    """Batches of some columns of a file in the order given, None for all, with JSON as text.

    Raises:
        InputError: the file is missing, is damaged, or lacks a column.
    """
    try:
        # `pre_buffer` would keep row groups in memory until the file is closed.
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
    """The messages of a row with the arguments of tool calls exactly as the model wrote them."""
    written = iter(row["arguments"])
    messages: list[Any] = []
    for message in row["messages"]:
        calls = message.get("tool_calls")
        if calls:
            message = {**message, "tool_calls": [_as_written(call, next(written)) for call in calls]}
        messages.append(message)
    return messages


def _as_written(call: JsonObject, arguments: str | None) -> JsonObject:
    # None: the endpoint wrote no text, and the call was stored unchanged.
    return call if arguments is None else {**call, "function": {**call["function"], "arguments": arguments}}


def _plain(column: pa.Array) -> pa.Array:
    """The column with JSON as text, since compute functions do not take the extension type."""
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
