"""Rows of foreign files and folders, one by one, each with its place."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from stillhouse.errors import InputError
from stillhouse.prompts.files import ENDINGS, TABLES, SourceRow, read_file, suffix_of

_DIGITS: Final = re.compile(r"(\d+)")
_SIDECARS: Final = frozenset({"dataset_info.json", "state.json", "dataset_dict.json"})
"""Metadata files of the package `datasets`."""


def files_of(source: Path) -> list[Path]:
    """Return the files below a folder in natural order of names, or the file itself; raise InputError for none."""
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise InputError(f"{source}: there is no such file or folder; expected what another program wrote")
    below = (path.relative_to(source) for path in source.rglob("*") if path.is_file())
    seen = [path for path in below if not any(part.startswith(".") for part in path.parts)]
    if not seen:
        raise InputError(f"{source}: the folder is empty; expected files of {', '.join(ENDINGS)}")
    return [source / path for path in sorted(seen, key=_by_number) if path.name not in _SIDECARS]


def _by_number(path: Path) -> list[Any]:
    return [[int(part) if part.isdigit() else part for part in _DIGITS.split(name)] for name in path.parts]


def read_rows(path: Path) -> Iterator[SourceRow]:
    """Read every row of one file in order.

    A row that cannot be read has a problem; so has the last row of a file that cannot be read, which therefore does not
    stop the conversion of others.
    """
    ending = suffix_of(path)
    try:
        if ending not in ENDINGS:
            raise InputError(f"expected a name ending in {', '.join(ENDINGS)}")
        rows = read_file(path, ending)
        yield from present(rows) if ending in TABLES else rows
    except InputError as error:
        yield SourceRow(str(path), {}, str(error))


def present(rows: Iterable[SourceRow]) -> Iterator[SourceRow]:
    """Return the rows of a table without null keys at any depth: there, every object has the keys of all others."""
    return (row._replace(value=_present(row.value)) for row in rows)


def _present(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _present(item) for key, item in value.items() if item is not None or key == "content"}
    return [_present(item) for item in value] if isinstance(value, list) else value
