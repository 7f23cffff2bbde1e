"""Rows of a prompts source, one by one, each with its place in the source.

Reading never stops at a bad row: one that cannot be read has a `problem`. Only a source that cannot be opened, or that
has no prompt column, raises. An empty cell is an absent key. `row` decides what a row means.
"""

import csv
import gzip
import io
import json
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from stillhouse.config import PromptsConfig, PromptSource
from stillhouse.embedded import embedded_path
from stillhouse.errors import ConfigError, InputError
from stillhouse.prompts.row import QUESTION_COLUMNS, brief
from stillhouse.store import digest, exact_json, file_sha256
from stillhouse.types import JsonObject

EMBEDDED: Final = "embedded:"
HUGGING_FACE: Final = "hf:"
_BATCH_ROWS: Final = 256
_PROMPT_COLUMNS: Final = ("prompt", "messages", *QUESTION_COLUMNS)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_UTF8_BOM: Final = b"\xef\xbb\xbf"
_UTF16_BOMS: Final = (b"\xff\xfe", b"\xfe\xff")
_FORMATS: Final = {
    ".txt": "txt", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".csv": "csv", ".tsv": "tsv",
    ".parquet": "parquet",
}  # fmt: skip
_COMPRESSED: Final = (".gz", ".zst")
# NaN and Infinity, which JSON has not and pandas writes for want of a value, are null.
_LENIENT: Final = json.JSONDecoder(parse_constant=lambda _: None)


class SourceRow(NamedTuple):
    """One row: a JSON object, or why it is none."""

    place: str
    """For instance `prompts.jsonl, line 12`."""
    value: JsonObject
    """Empty when there is a problem."""
    problem: str | None = None
    """What was seen and what was expected; None for a readable row."""


def read_source(config: PromptSource) -> Iterator[SourceRow]:
    """Every row of `config.source` in order; blank lines are skipped.

    Raises:
        ConfigError: the format is unknown, or needs a package that is not installed.
        InputError: the source is missing, unreadable, or has no column that holds a prompt.
    """
    kind = _format_of(config)
    if kind == "hf":
        name = config.source.removeprefix(HUGGING_FACE)
        return hugging_face_rows(name, config.hf_split, key="prompts.source", required=_PROMPT_COLUMNS)
    path = _path_of(config.source)
    if kind in ("csv", "tsv"):
        return read_csv(path, delimiter="\t" if kind == "tsv" else ",")
    return {"txt": _read_txt, "jsonl": read_jsonl, "json": read_json, "parquet": read_parquet}[kind](path)


def suffix_of(path: Path) -> str:
    """Return the ending that tells a file's format, in lower case: `.jsonl` of `rows.JSONL.gz`."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in _COMPRESSED else suffix


def source_fingerprint(config: PromptsConfig) -> str:
    """Fingerprint of the source, or of all sources, for a cache key.

    It is a hash of the file's bytes, or the name of a Hugging Face dataset. A dataset that changed on the hub is
    therefore read again only when the stage is refreshed.

    Raises:
        ConfigError, InputError: as `read_source`.
    """
    if config.sources:
        return digest([_fingerprint_of(source) for source in config.sources])
    return _fingerprint_of(config)


def _fingerprint_of(source: PromptSource) -> str:
    return source.source if _format_of(source) == "hf" else file_sha256(_path_of(source.source))


def _format_of(config: PromptSource) -> str:
    if config.format != "auto":
        return config.format
    if config.source.startswith(HUGGING_FACE):
        return "hf"
    kind = _FORMATS.get(suffix_of(Path(config.source)))
    if kind is None:
        if Path(config.source).is_dir():
            _path_of(config.source)
        raise ConfigError(
            f"prompts.source = {config.source!r}: the ending tells no format; expected {', '.join(sorted(_FORMATS))}, "
            f"also with {' or '.join(_COMPRESSED)} behind it, or {HUGGING_FACE}NAME, or name the format in "
            "prompts.format"
        )
    return kind


def _path_of(source: str) -> Path:
    if source.startswith(EMBEDDED):
        return embedded_path(source.removeprefix(EMBEDDED))
    path = Path(source).expanduser()
    if not path.exists():
        raise InputError(f"prompts file {path} is missing; expected the file that prompts.source names")
    if path.is_dir():
        raise InputError(
            f"prompts file {path} is a folder; expected a file. Name each of its files in prompts.sources, or all at "
            f"once as {HUGGING_FACE}{path}, which the package `datasets` reads"
        )
    return path


def _read_txt(path: Path) -> Iterator[SourceRow]:
    for number, line in _lines(path):
        place = f"{path}, line {number}"
        try:
            yield SourceRow(place, {"prompt": line.decode().strip()})
        except UnicodeDecodeError as error:
            yield SourceRow(place, {}, f"expected UTF-8, saw byte {line[error.start]:#04x} at byte {error.start}")


def read_jsonl(path: Path) -> Iterator[SourceRow]:
    """The objects in the lines of a file; raises as `read_source`."""
    for number, line in _lines(path):
        hint = "" if line.endswith(b"\n") else "; the file's last line has no end, so it may be cut off"
        if line.strip() in (b"[", b"{"):
            hint = "; JSON over several lines is read from a file that ends in .json"
        yield from _objects(f"{path}, line {number}", line, hint, is_line=True)


def read_json(path: Path) -> Iterator[SourceRow]:
    """The objects in a JSON file: one, those of a list, or one behind the other; raises as `read_source`."""
    with _opened(path) as file:
        text = file.read().removeprefix(_UTF8_BOM)
    yield from _objects(str(path), text, f"; {len(text)} bytes, so it may be cut off", is_line=False)


def _objects(place: str, text: bytes, hint: str, *, is_line: bool) -> Iterator[SourceRow]:
    """The rows in a text at `place`, mostly one; `hint` is why it may be no JSON."""
    try:
        values = _values(text)
    except ValueError as error:
        yield SourceRow(place, {}, f"expected a JSON object, saw {excerpt(text[:200])}: {error}{hint}")
        return
    first = values[0]
    is_list = isinstance(first, list) and (not is_line or all(isinstance(row, dict) for row in first))
    rows = first if is_list and len(values) == 1 else values
    for index, row in enumerate(rows):
        where = place if values == [row] else f"{place}, item {index}"
        is_row = isinstance(row, dict)
        yield SourceRow(where, row if is_row else {}, None if is_row else f"expected a JSON object, saw {brief(row)}")


def _values(text: bytes) -> list[Any]:
    """The JSON values in a text; raises ValueError where it is none."""
    try:
        return [exact_json.loads(text)]
    except orjson.JSONDecodeError as problem:
        values: list[Any] = []
        decoded, end = text.decode().strip(), 0
        try:
            while end < len(decoded) or not values:
                value, end = _LENIENT.raw_decode(decoded, end)
                end = json.decoder.WHITESPACE.match(decoded, end).end()  # type: ignore[attr-defined]
                values.append(value)
            # What the one parser reads and the other does not write, as half a surrogate pair, is no row.
            orjson.dumps(values)
        except (json.JSONDecodeError, RecursionError, TypeError):
            raise problem from None
        return values


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The bytes of a file, decompressed where its name says so, and in UTF-8 where it was UTF-16.

    Raises:
        InputError: they cannot be read.
    """
    suffix = path.suffix.lower()
    try:
        with gzip.GzipFile(path) if suffix == ".gz" else path.open("rb") as raw:
            file: Any = raw
            if suffix == ".zst":
                import pyarrow as pa

                file = io.BufferedReader(pa.CompressedInputStream(raw, "zstd"))
            if file.peek(2).startswith(_UTF16_BOMS):
                file = io.BytesIO(file.read().decode("utf-16").encode())
            yield file
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Non-blank lines with their numbers from 1, without a byte order mark."""
    with _opened(path) as file:
        for number, line in enumerate(file, start=1):
            if number == 1:
                line = line.removeprefix(_UTF8_BOM)
            if not line.isspace() and line:
                yield number, line


def excerpt(line: bytes) -> str:
    """The start of a line, for a message."""
    text = line.decode(errors="backslashreplace").strip()
    return repr(text if len(text) <= 60 else text[:57] + "...")


def read_csv(path: Path, required: Sequence[str] = _PROMPT_COLUMNS, *, delimiter: str = ",") -> Iterator[SourceRow]:
    """Rows of a csv file with a header line; the place of a row is the line where it starts.

    Raises:
        InputError: the file cannot be read or has none of the columns `required`.
    """
    # The default limit of 128 KiB a cell is below the length of a long prompt.
    csv.field_size_limit(sys.maxsize)
    # Bytes that are not UTF-8 become lone surrogates, so that only their own row is lost.
    with _opened(path) as file, io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="") as text:
        reader = csv.reader(text, delimiter=delimiter, strict=True)
        header = next(reader, [])
        _require_column(str(path), header, required)
        yield from _csv_rows(path, reader, header)


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
        elif _SURROGATE.search("".join(cells)):
            yield SourceRow(place, {}, "expected UTF-8, saw other bytes")
        else:
            yield SourceRow(place, {name: cell for name, cell in zip(header, cells, strict=True) if cell != ""})


def read_parquet(path: Path, required: Sequence[str] = _PROMPT_COLUMNS) -> Iterator[SourceRow]:
    """Rows of a Parquet file; raises as `read_csv`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # `pre_buffer` would keep row groups in memory once they are read.
        with pq.ParquetFile(path, pre_buffer=False) as file:
            _require_column(str(path), file.schema_arrow.names, required)
            rows = (row for batch in file.iter_batches(_BATCH_ROWS) for row in batch.to_pylist())
            yield from json_rows(str(path), rows)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path} cannot be read as Parquet: {error}") from error


def hugging_face_rows(name: str, split: str, *, key: str, required: Sequence[str]) -> Iterator[SourceRow]:
    """Rows of a Hugging Face dataset, `NAME` or `NAME:CONFIG`, or of a local folder, streamed.

    `key` is the config key that names it, for errors; of the columns `required` it must have one.

    Raises:
        ConfigError: the package `datasets` is not installed.
        InputError: the dataset, its config or its split cannot be read, or it has none of the columns `required`.
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
            _require_column(place, dataset.column_names, required)
        yield from json_rows(place, dataset)
    except (OSError, ValueError) as error:
        raise InputError(f"{place} cannot be read: {error}. Expected hf:NAME or hf:NAME:CONFIG and a split") from error


def json_rows(place: str, rows: Iterable[JsonObject]) -> Iterator[SourceRow]:
    """Rows whose values may be of any type; dates and the like become text."""
    for index, row in enumerate(rows):
        present = {name: value for name, value in row.items() if value is not None}
        try:
            yield SourceRow(f"{place}, row {index}", exact_json.loads(exact_json.dumps(present, default=str)))
        except TypeError as error:
            yield SourceRow(f"{place}, row {index}", {}, f"expected values that JSON can hold: {error}")


def _require_column(place: str, columns: list[str], required: Sequence[str] = _PROMPT_COLUMNS) -> None:
    if required and not set(required).intersection(columns):
        expected = " or ".join(f"`{name}`" for name in required)
        raise InputError(f"{place}: expected a column {expected}, saw columns: {', '.join(columns) or 'none'}")
