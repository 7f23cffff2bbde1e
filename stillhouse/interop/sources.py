"""Rows of foreign files, one by one, each with the place it came from; a file or a folder of files."""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import orjson

from stillhouse.config import PromptsConfig
from stillhouse.errors import InputError
from stillhouse.prompts.sources import SourceRow, excerpt, read_source

_BATCH_ROWS: Final = 256
_DIGITS: Final = re.compile(r"(\d+)")
_SIDECARS: Final = frozenset({"dataset_info.json", "state.json", "dataset_dict.json"})
"""What `datasets` writes beside its tables."""


def files_of(source: Path) -> list[Path]:
    """The files of a folder and of those below it, by name with numbers in their order; a file is itself.

    Raises:
        InputError: there is nothing of that name, or no file in it.
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

    A row that cannot be read carries a problem and does not end the reading; what is wrong with the file as a whole is
    the problem of its last row, so that one torn file of many costs itself alone.
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
    """The object of a file, or those of a list."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InputError(f"the file cannot be read: {error.strerror or error}") from error
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        told = f"expected a JSON object, saw {excerpt(text[:200])}: {error}"
        yield SourceRow(str(path), {}, f"{told}; {len(text)} bytes, so it may be cut off")
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
        # Or row groups stay in memory once they are read.
        with pq.ParquetFile(path, pre_buffer=False) as file:
            yield from _table_rows(path, file.iter_batches(_BATCH_ROWS))
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"the file cannot be read as Parquet: {error}") from error


def _read_arrow(path: Path) -> Iterator[SourceRow]:
    """A table that `datasets.save_to_disk` wrote."""
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as batches:
            yield from _table_rows(path, batches)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"the file cannot be read as an Arrow stream: {error}") from error


def _table_rows(path: Path, batches: Any) -> Iterator[SourceRow]:
    """Rows with what JSON can hold; an empty cell is an absent key."""
    index = 0
    for batch in batches:
        for row in batch.to_pylist():
            present = {name: value for name, value in row.items() if value is not None}
            yield SourceRow(f"{path}, row {index}", orjson.loads(orjson.dumps(present, default=str)))
            index += 1


READERS: Final[dict[str, Callable[[Path], Iterator[SourceRow]]]] = {
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".parquet": _read_parquet,
    ".arrow": _read_arrow,
}


def first_row(paths: Iterable[Path]) -> SourceRow | None:
    """The first row of files that can be read, else the first with what is wrong with it; None where there is none."""
    first = None
    for path in paths:
        for row in read_rows(path):
            if row.problem is None:
                return row
            first = first or row
    return first
