"""Where foreign files lie, and their rows, one by one, each with its place.

A converted config is read from any working directory, so that its paths begin at the root.
"""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from stillhouse.errors import InputError
from stillhouse.prompts.files import ENDINGS, TABLES, SourceRow, read_file, suffix_of

_DIGITS: Final = re.compile(r"(\d+)")
_SIDECARS: Final = frozenset({"dataset_info.json", "state.json", "dataset_dict.json"})
"""Metadata files of the package `datasets`."""
_MODEL_KEYS: Final = frozenset({"path", "pretrain", "student_pretrain", "teacher_pretrain", "model_name_or_path"})
_LEVELS: Final = 2
"""Folders above a config of ROLL's, which lies in `examples/NAME` and is started from above both."""


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


def absolute_path(name: str | Path, folder: Path) -> str:
    """Return `name` as a path from the root, taken from `folder` unless it is one already."""
    return os.path.abspath(folder / name)


def find_path(name: str, folder: Path) -> Path | None:
    """Return the file or folder that a config in `folder` names: there, here, or in the two folders above it."""
    above = list(Path(os.path.abspath(folder)).parents)[:_LEVELS]
    places = (Path(absolute_path(name, place)) for place in (folder, Path(), *above))
    return next((path for path in places if path.exists()), None)


def with_absolute_models(value: Any, folder: Path) -> Any:
    """Return `value` with absolute paths of the models that are folders here; other models are names on the Hub."""
    if isinstance(value, list):
        return [with_absolute_models(part, folder) for part in value]
    if not isinstance(value, dict):
        return value
    return {
        key: str(find_path(part, folder) or part)
        if part and key in _MODEL_KEYS and isinstance(part, str)
        else with_absolute_models(part, folder)
        for key, part in value.items()
    }
