"""Rows of foreign files and folders, one by one, each with its place."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import orjson

from stillhouse.config import PromptsConfig
from stillhouse.errors import InputError
from stillhouse.prompts.sources import SourceRow, excerpt, json_rows, read_source
from stillhouse.types import JsonObject

_BATCH_ROWS: Final = 256
_DIGITS: Final = re.compile(r"(\d+)")
_SIDECARS: Final = frozenset({"dataset_info.json", "state.json", "dataset_dict.json"})
"""Metadata files of the package `datasets`."""


def files_of(source: Path) -> list[Path]:
    """The files below a folder in natural order of names, or the file itself.

    Raises:
        InputError: it is missing or empty.
    """
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise InputError(f"{source}: there is no such file or folder; expected what another program wrote")
    below = (path.relative_to(source) for path in source.rglob("*") if path.is_file())
    seen = [path for path in below if not any(part.startswith(".") for part in path.parts)]
    if not seen:
        raise InputError(f"{source}: the folder is empty; expected files of {', '.join(READERS)}")
    return [source / path for path in sorted(seen, key=_by_number) if path.name not in _SIDECARS]


def _by_number(path: Path) -> list[Any]:
    return [[int(part) if part.isdigit() else part for part in _DIGITS.split(name)] for name in path.parts]


def read_rows(path: Path) -> Iterator[SourceRow]:
    """Every row of one file in order.

    A row that cannot be read has a problem; so has the last row of a file that cannot be read, which therefore does not
    stop the conversion of others.
    """
    try:
        reader = READERS.get(path.suffix.lower())
        if reader is None:
            raise InputError(f"expected a name ending in {', '.join(READERS)}")
        yield from reader(path)
    except InputError as error:
        yield SourceRow(str(path), {}, str(error))


def _read_jsonl(path: Path) -> Iterator[SourceRow]:
    return read_source(PromptsConfig(source=str(path), format="jsonl"))


def _read_json(path: Path) -> Iterator[SourceRow]:
    """The object in a file, or the objects of its list."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InputError(f"the file cannot be read: {error.strerror or error}") from error
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        problem = f"expected a JSON object, saw {excerpt(text[:200])}: {error}; {len(text)} bytes, so it may be cut off"
        yield SourceRow(str(path), {}, problem)
        return
    rows = list(enumerate(value)) if isinstance(value, list) else [(None, value)]
    for index, row in rows:
        place = str(path) if index is None else f"{path}, item {index}"
        if isinstance(row, dict):
            yield SourceRow(place, row)
        else:
            yield SourceRow(place, {}, f"expected a JSON object, saw {type(row).__name__} {row!r:.60}")


def _read_parquet(path: Path) -> Iterator[SourceRow]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # `pre_buffer` would keep row groups in memory once they are read.
        with pq.ParquetFile(path, pre_buffer=False) as file:
            yield from json_rows(str(path), _rows_of(file.iter_batches(_BATCH_ROWS)))
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"the file cannot be read as Parquet: {error}") from error


def _read_arrow(path: Path) -> Iterator[SourceRow]:
    """Rows of a table that `datasets.save_to_disk` wrote."""
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as batches:
            yield from json_rows(str(path), _rows_of(batches))
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"the file cannot be read as an Arrow stream: {error}") from error


def _rows_of(batches: Any) -> Iterator[JsonObject]:
    return (row for batch in batches for row in batch.to_pylist())


READERS: Final[dict[str, Callable[[Path], Iterator[SourceRow]]]] = {
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".parquet": _read_parquet,
    ".arrow": _read_arrow,
}
