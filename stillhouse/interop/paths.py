"""Paths in foreign configs, as absolute paths: a converted config is read from any working directory."""

import os
from pathlib import Path
from typing import Any, Final

_MODEL_KEYS: Final = frozenset({"path", "pretrain", "student_pretrain", "teacher_pretrain", "model_name_or_path"})
_LEVELS: Final = 2
"""Folders above a config of ROLL's, which lies in `examples/NAME` and is started from above both."""


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
