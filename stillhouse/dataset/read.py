"""Rows of a dataset's Parquet files: whole, with their JSON columns as JSON objects again, or labels by column."""

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


def read_rows(folder: Path, split: SplitName) -> Iterator[JsonObject]:
    """The rows of one file of a dataset, in order; messages, tools, metadata and error as they were stored.

    Raises:
        InputError: the file is missing or no dataset of ours.
    """
    return read_file(folder / f"{split}.parquet")


def read_file(path: Path, columns: Sequence[str] | None = None) -> Iterator[JsonObject]:
    """As `read_rows`, for a file that may lie anywhere; `columns` are those wanted, None for all.

    Raises:
        InputError: the file is missing or no dataset of ours.
    """
    for batch in _batches(path, columns):
        for row in batch.to_pylist():
            yield {name: _decoded(name, value) for name, value in row.items()}


def iter_labels(path: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Some columns of a file, JSON columns as text; nothing else of it is read.

    Raises:
        InputError: the file is missing or no dataset of ours.
    """
    return _batches(path, columns)


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


def _batches(path: Path, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    try:
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(_BATCH_ROWS, columns=columns)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise InputError(f"dataset file {path} cannot be read: {error}; expected a folder of build_dataset") from error


def _decoded(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name in JSON_LIST_COLUMNS:
        return [orjson.loads(item) for item in value]
    return orjson.loads(value) if name in JSON_COLUMNS else value
