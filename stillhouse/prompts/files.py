"""Rows of files and tables, one by one, each with its place.

Reading never stops at a bad row: one that cannot be read has a `problem`. Only a file that cannot be opened, or that
lacks a column, raises. An empty cell is an absent key.
"""

import csv
import io
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from stillhouse.errors import InputError
from stillhouse.prompts.row import brief
from stillhouse.store import exact_json
from stillhouse.types import JsonObject

COMPRESSED: Final = {".gz": "gzip", ".zst": "zstd"}
"""Names of pyarrow's codecs by the ending behind a format's."""
ENDINGS: Final = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow")
"""Of files that hold rows of keys and values."""
TABLES: Final = frozenset({".parquet", ".arrow"})
_BATCH_ROWS: Final = 256
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_UTF8_BOM: Final = b"\xef\xbb\xbf"
_UTF16_BOMS: Final = (b"\xff\xfe", b"\xfe\xff")
_SPACE: Final = re.compile(r"\s*")
# NaN and Infinity, which JSON has not and pandas writes for want of a value, are null.
_LENIENT: Final = json.JSONDecoder(parse_constant=lambda _: None)


class SourceRow(NamedTuple):
    """One row: a JSON object, or why it is none."""

    place: str
    """For instance `prompts.jsonl, line 12`."""
    value: JsonObject
    """Empty when there is a problem."""
    problem: str | None = None
    """The value seen and the value expected; None for a readable row."""


def suffix_of(path: Path) -> str:
    """Return the ending that tells a file's format, in lower case: `.jsonl` of `rows.JSONL.gz`."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in COMPRESSED else suffix


def read_file(path: Path, ending: str, required: Sequence[str] = ()) -> Iterator[SourceRow]:
    """Yield every row of a file, which may be compressed, in order; blank lines are skipped.

    `ending` is its format, one of ENDINGS or `.txt`, which holds a prompt a line. Raises InputError if it cannot be
    read, or is a table or csv file that has none of the columns `required`.
    """
    try:
        if ending in TABLES:
            yield from _table_rows(path, ending, required)
            return
        with _opened(path) as file:
            if ending in (".csv", ".tsv"):
                # Bytes that are not UTF-8 become lone surrogates, so that only their own row is lost.
                with io.TextIOWrapper(file, "utf-8", errors="surrogateescape", newline="") as text:
                    yield from _csv_rows(str(path), text, "," if ending == ".csv" else "\t", required)
            elif ending == ".json":
                yield from _json_rows(str(path), file.read())
            else:
                rows_of = _text_rows if ending == ".txt" else _json_rows
                for number, line in enumerate(file, start=1):
                    if line.strip():
                        yield from rows_of(f"{path}, line {number}", line)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _text_rows(place: str, line: bytes) -> Iterator[SourceRow]:
    try:
        yield SourceRow(place, {"prompt": line.decode().strip()})
    except UnicodeDecodeError as error:
        yield SourceRow(place, {}, f"expected UTF-8, saw byte {line[error.start]:#04x} at byte {error.start}")


def _json_rows(place: str, text: bytes) -> Iterator[SourceRow]:
    """Yield the rows in a line or a file: one, those of a list, or one behind the other."""
    try:
        rows = _values(text)
    except ValueError as error:
        hint = "" if text.endswith(b"\n") else "; the file's last line has no end, so it may be cut off"
        if text.strip() in (b"[", b"{"):
            hint = "; JSON over several lines is read from a file that ends in .json"
        yield SourceRow(place, {}, f"expected a JSON object, saw {_excerpt(text)}: {error}{hint}")
        return
    if len(rows) == 1 and isinstance(rows[0], list):
        (rows,) = rows
    for index, row in enumerate(rows):
        where = place if len(rows) == 1 else f"{place}, item {index}"
        if isinstance(row, dict):
            yield SourceRow(where, row)
        else:
            yield SourceRow(where, {}, f"expected a JSON object, saw {brief(row)}")


def _values(text: bytes) -> list[Any]:
    """Return the JSON values in a text; raise ValueError where it is none."""
    try:
        return [exact_json.loads(text)]
    except orjson.JSONDecodeError as problem:
        values: list[Any] = []
        decoded, end = text.decode().strip(), 0
        try:
            while end < len(decoded):
                value, end = _LENIENT.raw_decode(decoded, end)
                end = _SPACE.match(decoded, end).end()  # type: ignore[union-attr]
                values.append(value)
            # What the one parser reads and the other does not write, as half a surrogate pair, is no row.
            exact_json.dumps(values)
        except (json.JSONDecodeError, RecursionError, TypeError):
            raise problem from None
        return values


def _excerpt(text: bytes) -> str:
    start = text[:200].decode(errors="backslashreplace").strip()
    return repr(start if len(start) <= 60 else start[:57] + "...")


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Yield the bytes of a file: decompressed where its name says so, UTF-16 as UTF-8, without a byte order mark."""
    raw: Any
    if codec := COMPRESSED.get(path.suffix.lower()):
        import pyarrow as pa

        raw = pa.input_stream(path, compression=codec)
    else:
        raw = path.open("rb", buffering=0)
    with io.BufferedReader(raw) as file:
        start = file.peek(3)
        if start.startswith(_UTF16_BOMS):
            yield io.BytesIO(file.read().decode("utf-16").encode())
            return
        if start.startswith(_UTF8_BOM):
            file.read(3)
        yield file


def _csv_rows(path: str, text: Iterable[str], delimiter: str, required: Sequence[str]) -> Iterator[SourceRow]:
    """Yield the rows of a table as text, each placed at the line where it starts."""
    # The default limit of 128 KiB a cell is below the length of a long prompt.
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    header = next(reader, [])
    require_column(path, header, required)
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
        elif _SURROGATE.search("".join(cells)):
            yield SourceRow(place, {}, "expected UTF-8, saw other bytes")
        else:
            yield SourceRow(place, {name: cell for name, cell in zip(header, cells, strict=True) if cell != ""})


def _table_rows(path: Path, ending: str, required: Sequence[str]) -> Iterator[SourceRow]:
    """Yield rows of a Parquet file, or of an Arrow stream, which `datasets.save_to_disk` writes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pa.memory_map(str(path)) as file:
            # `pre_buffer` would keep row groups in memory once they are read.
            table = pq.ParquetFile(file, pre_buffer=False) if ending == ".parquet" else pa.ipc.open_stream(file)
            require_column(str(path), getattr(table, "schema_arrow", table.schema).names, required)
            batches = table.iter_batches(_BATCH_ROWS) if ending == ".parquet" else table
            yield from json_rows(str(path), (row for batch in batches for row in batch.to_pylist()))
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path} cannot be read as {ending[1:].capitalize()}: {error}") from error


def json_rows(place: str, rows: Iterable[JsonObject]) -> Iterator[SourceRow]:
    """Yield rows whose values may be of any type; dates and the like become text."""
    for index, row in enumerate(rows):
        present = {name: value for name, value in row.items() if value is not None}
        try:
            yield SourceRow(f"{place}, row {index}", exact_json.loads(exact_json.dumps(present, default=str)))
        except TypeError as error:
            yield SourceRow(f"{place}, row {index}", {}, f"expected values that JSON can hold: {error}")


def require_column(place: str, columns: Sequence[str], required: Sequence[str]) -> None:
    """Raise an InputError where a table has none of the columns `required`."""
    if required and not set(required).intersection(columns):
        expected = " or ".join(f"`{name}`" for name in required)
        raise InputError(f"{place}: expected a column {expected}, saw columns: {', '.join(columns) or 'none'}")
