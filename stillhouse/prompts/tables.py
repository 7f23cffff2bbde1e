"""Rows of sources with columns: csv, Parquet, Hugging Face datasets. An empty cell is an absent key."""

import csv
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from stillhouse.errors import ConfigError, InputError
from stillhouse.prompts.sources import SourceRow
from stillhouse.types import JsonObject

_BATCH_ROWS: Final = 1024
_PROMPT_COLUMNS: Final = ("prompt", "messages")


def read_csv(path: Path) -> Iterator[SourceRow]:
    """Rows of a csv file with a header line; a row is placed at the line where it starts.

    Raises:
        InputError: the file cannot be read or its header lacks a prompt column.
    """
    # The module's default of 128 KiB for a cell is below the length of a long prompt.
    csv.field_size_limit(sys.maxsize)
    try:
        # Bytes that are not UTF-8 become lone surrogates, so that they cost their own row and not the file.
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            _require_column(str(path), header)
            yield from _csv_rows(path, reader, header)
    except OSError as error:
        raise InputError(f"prompts file {path} cannot be read: {error.strerror or error}") from error


def _csv_rows(path: Path, reader: Any, header: list[str]) -> Iterator[SourceRow]:
    while True:
        place = f"{path}, line {reader.line_num + 1}"
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield SourceRow(place, {}, f"expected csv cells, saw a row that breaks off: {error}")
            continue
        if not cells:
            continue
        if len(cells) != len(header):
            yield SourceRow(place, {}, f"expected {len(header)} cells as in the header, saw {len(cells)}")
        elif not all(map(_is_utf8, cells)):
            yield SourceRow(place, {}, "expected UTF-8, saw other bytes")
        else:
            yield SourceRow(place, {name: cell for name, cell in zip(header, cells, strict=True) if cell != ""})


def _is_utf8(cell: str) -> bool:
    try:
        cell.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_parquet(path: Path) -> Iterator[SourceRow]:
    """Rows of a Parquet file, counted from 0 in their places.

    Raises:
        InputError: the file cannot be read or lacks a prompt column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Or row groups stay in memory once they are read.
        with pq.ParquetFile(path, pre_buffer=False) as file:
            _require_column(str(path), file.schema_arrow.names)
            rows = (row for batch in file.iter_batches(_BATCH_ROWS) for row in batch.to_pylist())
            yield from _typed_rows(str(path), rows)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"prompts file {path} cannot be read as Parquet: {error}") from error


def read_hugging_face(name: str, split: str) -> Iterator[SourceRow]:
    """`hugging_face_rows` of prompts."""
    return hugging_face_rows(name, split, key="prompts.source", wanted=_PROMPT_COLUMNS)


def hugging_face_rows(name: str, split: str, *, key: str, wanted: Sequence[str]) -> Iterator[SourceRow]:
    """Rows of a Hugging Face dataset, streamed.

    Args:
        name: `NAME` or `NAME:CONFIG`, or a local folder.
        split: Of the dataset.
        key: What in the config names it, for errors.
        wanted: Columns of which it has to have one.

    Raises:
        ConfigError: the package `datasets` is not installed.
        InputError: the dataset, its config or its split cannot be read, or it lacks all the columns `wanted`.
    """
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ConfigError(f"{key} = 'hf:{name}' needs the package `datasets`: install stillhouse[hub]") from error
    repository, _, config_name = name.partition(":")
    if not repository:
        raise ConfigError(f"{key} = 'hf:{name}' names no dataset; expected hf:NAME or hf:NAME:CONFIG")
    place = f"hf:{name}[{split}]"
    try:
        dataset = load_dataset(repository, config_name or None, split=split, streaming=True)
        if dataset.column_names is not None:
            _require_column(place, dataset.column_names, wanted)
        yield from _typed_rows(place, dataset)
    except (OSError, ValueError) as error:
        raise InputError(f"{place} cannot be read: {error}. Expected hf:NAME or hf:NAME:CONFIG and a split") from error


def _typed_rows(place: str, rows: Iterable[JsonObject]) -> Iterator[SourceRow]:
    """Rows whose values may be of any type; dates and the like become their text."""
    for index, row in enumerate(rows):
        present = {name: value for name, value in row.items() if value is not None}
        try:
            yield SourceRow(f"{place}, row {index}", orjson.loads(orjson.dumps(present, default=str)))
        except TypeError as error:
            yield SourceRow(f"{place}, row {index}", {}, f"expected values that JSON can hold: {error}")


def _require_column(place: str, columns: list[str], wanted: Sequence[str] = _PROMPT_COLUMNS) -> None:
    if not set(wanted).intersection(columns):
        expected = " or ".join(f"`{name}`" for name in wanted)
        raise InputError(f"{place}: expected a column {expected}, saw columns: {', '.join(columns) or 'none'}")
