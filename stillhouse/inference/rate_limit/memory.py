"""`LimitsFile`: limits learnt, in a small JSON file for the process that resumes the run.

It has an entry for each (base URL, key, model), named by their digest.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from stillhouse.errors import StoreError
from stillhouse.inference.rate_limit.values import LearntLimits
from stillhouse.store.atomic import write_atomic

_LOG = logging.getLogger(__name__)
_STALE_S: Final = 6 * 3600.0


@dataclass(frozen=True, slots=True)
class LimitsFile:
    path: Path
    name: str
    wall_clock: Callable[[], float] = time.time
    """Seconds since 1970, comparable between processes."""

    def load(self) -> LearntLimits | None:
        """Return the limits learnt; None if there are none or only stale ones."""
        entry = self._entries().get(self.name)
        if not isinstance(entry, dict):
            return None
        try:
            if self._is_stale(entry):
                return None
            learnt = LearntLimits(**entry["learnt"])
            if any(known is not None and not known > 0 for known in astuple(learnt)):
                raise ValueError(f"{learnt}: expected numbers above 0")
        except (KeyError, TypeError, ValueError) as error:
            _LOG.warning("%s: the limits kept there cannot be used and are learnt again: %r", self.path, error)
            return None
        return learnt

    def save(self, learnt: LearntLimits) -> None:
        # Local servers have another port each time: their stale entries are dropped.
        entries = {name: entry for name, entry in self._entries().items() if self._is_wanted(entry)}
        entries |= {self.name: {"saved_at": self.wall_clock(), "learnt": learnt}}
        try:
            write_atomic(self.path, orjson.dumps(entries))
        except StoreError as error:
            _LOG.warning("%s: the learnt limits could not be kept: %s", self.path, error)

    def _is_wanted(self, entry: Any) -> bool:
        try:
            return not self._is_stale(entry)
        except (KeyError, TypeError, ValueError):
            return False

    def _is_stale(self, entry: Any) -> bool:
        """Return whether an entry is too old or of the future; TypeError, KeyError or ValueError if it has no time."""
        return not 0.0 <= self.wall_clock() - float(entry["saved_at"]) <= _STALE_S

    def _entries(self) -> dict[str, Any]:
        try:
            entries = orjson.loads(self.path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, orjson.JSONDecodeError) as error:
            _LOG.warning("%s: cannot be read, its limits are learnt again: %s", self.path, error)
            return {}
        return entries if isinstance(entries, dict) else {}
