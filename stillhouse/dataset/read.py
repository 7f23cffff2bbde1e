"""Reads Parquet files of a dataset and its shards: by row, JSON columns parsed, or by column, JSON as text."""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from stillhouse.dataset.schema import (
    CANDIDATE_COLUMNS,
    DIFFICULTY_COLUMNS,
    DUPLICATE_COLUMNS,
    JSON_COLUMNS,
    JSON_LIST_COLUMNS,
    JUDGE_COLUMNS,
    CandidateShard,
)
from stillhouse.errors import InputError
from stillhouse.labels import LABELS
from stillhouse.store import exact_json
from stillhouse.types import JsonObject, Message

SplitName = Literal["train", "validation", "rejected"]
_BATCH_ROWS: Final = 1024
"""Rows of a batch with all columns."""
_COLUMN_ROWS: Final = 1 << 14
"""Rows of a batch with some columns."""
_ON_REQUEST: Final = {column.name for label in LABELS if label.on_request for column in label.columns}
"""Columns that a shard may lack: it is from before the label was there, and nothing asked for it."""


def read_rows(folder: Path, split: SplitName) -> Iterator[JsonObject]:
    """Return the rows of one file of a dataset in order, as `read_file`."""
    return read_file(folder / f"{split}.parquet")


def read_file(path: Path, columns: Sequence[str] | None = None) -> Iterator[JsonObject]:
    """Yield the rows of any such file; `columns` None reads all.

    Raises InputError if the file is missing, is damaged, or lacks a column.
    """
    for batch in iter_columns(path, columns, batch_rows=_BATCH_ROWS):
        for row in batch.to_pylist():
            yield parsed(row)


def parsed(row: JsonObject, loads: Callable[[str], Any] = exact_json.loads) -> JsonObject:
    values = dict(row)
    for name, value in row.items():
        if value is not None and name in JSON_LIST_COLUMNS:
            values[name] = [loads(item) for item in value]
        elif value is not None and name in JSON_COLUMNS:
            values[name] = loads(value)
    return values


def iter_columns(
    path: Path, columns: Sequence[str] | None, *, batch_rows: int = _COLUMN_ROWS
) -> Iterator[pa.RecordBatch]:
    """Yield batches of some columns of a file in the order given, None for all, with JSON as text.

    Raises InputError if the file is missing, is damaged, or lacks a column.
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


def rows_at(path: Path, numbers: Sequence[int], columns: Sequence[str]) -> Iterator[JsonObject]:
    """Yield the rows of a file with these ascending numbers, JSON as text; row groups without any are skipped."""
    with pq.ParquetFile(path, pre_buffer=False) as file:
        start = 0
        for group in range(file.num_row_groups):
            end = start + file.metadata.row_group(group).num_rows
            if bisect_left(numbers, start) == bisect_left(numbers, end):
                start = end
                continue
            for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=list(columns)):
                end = start + len(batch)
                selected = numbers[bisect_left(numbers, start) : bisect_left(numbers, end)]
                yield from batch.take(pa.array([number - start for number in selected], pa.int64())).to_pylist()
                start = end


def shard_tables(shard: CandidateShard, names: Collection[str], batch_rows: int) -> Iterator[pa.Table]:
    """Yield the columns `names` of a shard, from all of its files, batch by batch; null for what was not measured.

    Raises InputError if a file lacks a column, or has more or fewer rows than the candidates.
    """
    files = (
        (shard.candidates, CANDIDATE_COLUMNS),
        (shard.judge, JUDGE_COLUMNS),
        (shard.difficulty, DIFFICULTY_COLUMNS),
        (shard.duplicates, DUPLICATE_COLUMNS),
    )
    num_rows = pq.read_metadata(shard.candidates).num_rows
    streams = []
    with ExitStack() as stack:
        for path, columns in files:
            wanted = [column.name for column in columns if column.name in names]
            if path is None or not wanted:
                continue
            file = stack.enter_context(pq.ParquetFile(path, pre_buffer=False))
            present = file.schema_arrow.names
            wanted = [name for name in wanted if name in present or name not in _ON_REQUEST]
            if missing := sorted(set(wanted) - set(present)):
                raise InputError(
                    f"{path}: has no column {', '.join(missing)}: another version wrote it. Label the shard again"
                )
            if file.metadata.num_rows != num_rows:
                raise InputError(
                    f"{path}: has {file.metadata.num_rows} rows, expected {num_rows} as {shard.candidates} has. "
                    "Measure the shard again"
                )
            streams.append(file.iter_batches(batch_rows, columns=wanted))
        types = {column.name: column.kind.arrow_type for _, columns in files for column in columns}
        for batches in zip(*streams, strict=True):
            table = pa.table({name: batch.column(name) for batch in batches for name in batch.schema.names})
            for name in sorted(set(names).difference(table.column_names)):
                table = table.append_column(name, pa.nulls(len(table), types[name]))
            yield table


def original_messages(row: JsonObject) -> list[Message]:
    """Return the messages of a row with the arguments of tool calls exactly as the model wrote them."""
    written = iter(row["arguments"])
    messages: list[Any] = []
    for message in row["messages"]:
        calls = message.get("tool_calls")
        if calls:
            # None: the endpoint wrote no text, and the call was stored unchanged.
            calls = [
                call
                if (text := next(written)) is None
                else {**call, "function": {**call["function"], "arguments": text}}
                for call in calls
            ]
            message = {**message, "tool_calls": calls}
        messages.append(message)
    return messages


def _plain(column: pa.Array) -> pa.Array:
    """Return the column with JSON as text, since compute functions do not take the extension type."""
    if isinstance(column.type, pa.JsonType):
        return column.storage
    if pa.types.is_list(column.type) and isinstance(column.type.value_type, pa.JsonType):
        return column.cast(pa.list_(pa.string()))
    return column
