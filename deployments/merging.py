"""Brings together what the files say of a deployment and what a person set on Prefect's pages."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from stillhouse.config.secrets import may_be_repeated
from stillhouse.types import JsonObject

_NOT_SET: Final = object()
_CONFIG: Final = "parameters.config."
_MAY_HOLD_KEYS: Final = "job_variables"
"""What is below it, such as a variable of the environment, is named and never shown."""
_LONGEST: Final = 60


@dataclass
class Merge:
    """The values of a deployment, and a text for each that the page and the file have in two ways."""

    values: Any = None
    kept: list[str] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)

    def told(self) -> Iterator[str]:
        """Yield what a person is told of it."""
        if self.taken:
            yield f"taken from the files: {', '.join(self.taken)}"
        if self.kept:
            yield f"kept from the page: {', '.join(self.kept)}; RESET=1 takes the files"


def merge(before: JsonObject | None, page: JsonObject, file: JsonObject) -> Merge:
    """Keep each value of the page that is not the one deployed `before`, and take all others from the file.

    None for `before` says that it is unknown. Then all are taken from the file, but for schedules that it does not have
    and for what is switched: the deployment itself and its schedules.
    """
    merged = Merge()
    merged.values = _merged(_presumed(page, file) if before is None else before, page, file, (), merged)
    return merged


def take(page: JsonObject, file: JsonObject) -> Merge:
    """Take every value from the file."""
    merged = Merge()
    merged.values = _merged(page, page, file, (), merged)
    return merged


def _presumed(page: JsonObject, file: JsonObject) -> JsonObject:
    schedules = {
        slug: {**schedule, "active": file["schedules"][slug]["active"]}
        for slug, schedule in page["schedules"].items()
        if slug in file["schedules"]
    }
    return {**page, "paused": file["paused"], "schedules": schedules}


def _merged(before: Any, page: Any, file: Any, key: Sequence[str], merged: Merge) -> Any:
    if isinstance(page, dict) and isinstance(file, dict):
        known = before if isinstance(before, dict) else {}
        values = {
            name: _merged(
                known.get(name, _NOT_SET), page.get(name, _NOT_SET), file.get(name, _NOT_SET), (*key, name), merged
            )
            for name in (*file, *(name for name in page if name not in file))
        }
        return {name: value for name, value in values.items() if value is not _NOT_SET}
    if _same(page, file):
        return file
    name = ".".join(key).removeprefix(_CONFIG)
    seen, written = (_shown(key, value) for value in (page, file))
    if not _same(page, before):
        merged.kept.append(f"{name} = {seen} (file: {written})")
        return page
    # A key that is new in the file overwrites nothing.
    if not _same(page, _NOT_SET):
        merged.taken.append(f"{name} = {written} (was {seen})")
    return file


def _same(one: Any, other: Any) -> bool:
    # Prefect's form leaves out what is null.
    return (None if one is _NOT_SET else one) == (None if other is _NOT_SET else other)


def _shown(key: Sequence[str], value: Any) -> str:
    if value is _NOT_SET or value is None:
        return "not set"
    if key[0] == _MAY_HOLD_KEYS or not may_be_repeated(value):
        return "***"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
