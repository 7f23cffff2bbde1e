"""A file of JSON lines that grows as a training goes on and goes back with it to a checkpoint."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from stillhouse.errors import StoreError
from stillhouse.store.atomic import sync, unwritable, write_atomic
from stillhouse.types import JsonObject

GENERATIONS_FILE: Final = "generations.jsonl"
"""Answers sampled while a training ran."""


class StepRows:
    """Rows that each hold a `step`, in the order of their steps.

    Args:
        path: the file; absent is empty. None keeps nothing: of the processes that train together one writes.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def append(self, rows: Iterable[JsonObject]) -> None:
        """Adds rows.

        Raises:
            StoreError: no space or no permission.
        """
        if self._path is None:
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(_line(row) for row in rows)
        except OSError as error:
            raise unwritable(self._path, error) from error

    def read(self) -> list[JsonObject]:
        """All rows; a last line cut short by a crash is left out.

        Raises:
            StoreError: a line is damaged.
        """
        if self._path is None or not self._path.exists():
            return []
        lines = self._path.read_bytes().split(b"\n")[:-1]
        try:
            return [json.loads(line) for line in lines]
        except ValueError as error:
            raise StoreError(
                f"{self._path}: a line is no JSON: {error}. Mend or delete it: the file shows how a training went, "
                "which does not need it to continue"
            ) from error

    def go_back(self, step: int) -> list[JsonObject]:
        """Leaves the rows of the first `step` steps, and returns them.

        Raises:
            StoreError: no space, no permission, or a line is damaged.
        """
        kept = [row for row in self.read() if row["step"] <= step]
        if self._path is not None:
            write_atomic(self._path, "".join(map(_line, kept)).encode())
        return kept

    def sync(self) -> None:
        """Makes durable what was appended."""
        if self._path is not None and self._path.exists():
            sync(self._path)


def _line(row: JsonObject) -> str:
    return json.dumps(row) + "\n"
