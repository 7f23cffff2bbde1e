"""`LearntFile`: what a process learnt of an endpoint, in a small JSON file for the process that comes after it."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import orjson

from stillhouse.errors import StoreError
from stillhouse.store.atomic import write_atomic

_LOG = logging.getLogger(__name__)
LearntT = TypeVar("LearntT")


@dataclass(frozen=True, slots=True)
class LearntFile(Generic[LearntT]):
    """The entry `name` of a file."""

    path: Path
    name: str
    kind: Callable[..., LearntT]
    """Dataclass of plain values; it raises TypeError or ValueError for those that it cannot have."""
    stale_s: float
    """Age at which an entry is forgotten, as endpoints change."""
    wall_clock: Callable[[], float] = time.time
    """Seconds since 1970, comparable between processes."""

    def load(self) -> LearntT | None:
        """Return what was learnt; None if nothing was, or what is there is stale or damaged."""
        entry = self._entries().get(self.name)
        try:
            return None if entry is None else self.kind(**entry["learnt"])
        except (KeyError, TypeError, ValueError) as error:
            _LOG.warning("%s: an entry cannot be used and is learnt again: %r", self.path, error)
            return None

    def save(self, learnt: LearntT) -> None:
        entries = self._entries() | {self.name: {"saved_at": self.wall_clock(), "learnt": learnt}}
        try:
            write_atomic(self.path, orjson.dumps(entries))
        except StoreError as error:
            _LOG.warning("%s: what was learnt of an endpoint could not be kept: %s", self.path, error)

    def _entries(self) -> dict[str, Any]:
        """Return the entries of all names, less those that are stale or of the future."""
        try:
            entries = orjson.loads(self.path.read_bytes()).items()
            ages = {name: self.wall_clock() - float(entry["saved_at"]) for name, entry in entries}
        except FileNotFoundError:
            return {}
        except (OSError, AttributeError, KeyError, TypeError, ValueError) as error:
            _LOG.warning("%s: cannot be read, what it holds is learnt again: %r", self.path, error)
            return {}
        return {name: entry for name, entry in entries if 0.0 <= ages[name] <= self.stale_s}
