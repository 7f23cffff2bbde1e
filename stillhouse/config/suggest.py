"""Guesses at the key or file that was meant by a wrong one."""

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import BaseModel

PROMPT_SUFFIXES: Final = (".txt", ".jsonl", ".json", ".csv", ".tsv", ".parquet")
"""Endings of files of prompts."""
_MAX_NAMED: Final = 3


def nearest(name: str, known: Sequence[str]) -> str | None:
    """Return the most similar of the known names; None if none is similar."""
    return next(iter(difflib.get_close_matches(name, known, n=1)), None)


def keys_named(name: str, model: type[BaseModel]) -> list[str]:
    """Return dotted keys below `model` whose last part is `name`, or else the one most similar to it."""
    keys = list(_keys(model))
    last = nearest(name, [name] if any(_last(key) == name for key in keys) else sorted({_last(key) for key in keys}))
    return [key for key in keys if _last(key) == last][:_MAX_NAMED]


def section_at(model: type[BaseModel], place: Sequence[int | str]) -> type[BaseModel] | None:
    """Return the section at a place below `model`, in a list or not; None if there is none."""
    section: type[BaseModel] | None = model
    for part in place:
        if isinstance(part, str) and section is not None:
            field = section.model_fields.get(part)
            section = None if field is None else _section(field.annotation)
    return section


def not_a_config(path: Path) -> str | None:
    """Return why `path` cannot be a config, with what to type instead; None for a file that may be one."""
    if path.is_dir():
        configs = sorted(item for item in path.iterdir() if item.suffix in (".yaml", ".yml"))
        named = ", ".join(map(str, configs[:_MAX_NAMED])) or "none"
        return f"{path}: cannot be read: it is a folder. Expected a YAML file; those in it: {named}"
    if path.suffix in PROMPT_SUFFIXES and path.suffix != ".json":
        return (
            f"{path}: expected a config (.yaml), saw a file of prompts. To sample answers to them, type: stillhouse "
            f"generate {path} -m MODEL -o rows.jsonl. For anything else name it in a config, as prompts.source"
        )
    if not path.exists():
        close = nearest(path.name, [item.name for item in path.parent.glob("*.y*ml")])
        hint = f"Did you mean {path.parent / close}?" if close else "Expected a YAML file such as configs/demo.yaml"
        return f"{path}: cannot be read: there is no such file. {hint}"
    return None


def _keys(model: type[BaseModel], path: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _keys(field.annotation, f"{path}{name}.")
        else:
            yield f"{path}{name}"


def _section(annotation: Any) -> type[BaseModel] | None:
    """Return the section that a type is, or is a list of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_section, get_args(annotation))), None)


def _last(key: str) -> str:
    return key.rpartition(".")[2]
