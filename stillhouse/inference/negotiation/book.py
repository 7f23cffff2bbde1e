"""`TermsBook`: the terms of one endpoint's model, shared in this process and kept beside the journal."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Final

import orjson

from stillhouse.errors import StoreError
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.negotiation.terms import Terms
from stillhouse.store.atomic import write_atomic

_LOG = logging.getLogger(__name__)
TERMS_FILE: Final = "terms.json"
"""Name of the file in the folder of a journal."""
_STALE_S: Final = 30 * 86400.0
"""Models come to take what they did not."""


class TermsBook:
    """The terms of `endpoint` in the API at `path`; without a folder this process alone remembers them."""

    _known: ClassVar[dict[str, Terms]] = {}
    lock: ClassVar = threading.RLock()
    """Held while a refusal is learnt from, so that other threads see either the terms before or those after."""

    def __init__(
        self, endpoint: Endpoint, path: str, folder: Path | None, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._name = f"{endpoint.base_url} {endpoint.model} {path}"
        # A local server has another port each time.
        self._file = None if folder is None or endpoint.is_local else folder / TERMS_FILE
        self._wall_clock = wall_clock
        with self.lock:
            if self._name not in self._known and (kept := self._load()) is not None:
                self._known[self._name] = kept
                _LOG.warning("%s: model %s: as its refusals taught before: %s", endpoint.base_url, endpoint.model, kept)

    @property
    def terms(self) -> Terms:
        return self._known.get(self._name, Terms())

    def put(self, terms: Terms) -> None:
        """Let the terms hold for all requests from now on."""
        with self.lock:
            self._known[self._name] = terms
            if self._file is None:
                return
            entries = {**self._entries(), self._name: {"saved_at": self._wall_clock(), "terms": terms}}
            try:
                write_atomic(self._file, orjson.dumps(entries))
            except StoreError as error:
                _LOG.warning("%s: what an endpoint takes could not be kept: %s", self._file, error)

    def _load(self) -> Terms | None:
        entry = self._entries().get(self._name)
        try:
            if entry is None or not 0.0 <= self._wall_clock() - float(entry["saved_at"]) <= _STALE_S:
                return None
            return Terms(**entry["terms"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            _LOG.warning("%s: an entry cannot be used and is learnt again: %r", self._file, error)
            return None

    def _entries(self) -> dict[str, Any]:
        if self._file is None:
            return {}
        try:
            entries = orjson.loads(self._file.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, orjson.JSONDecodeError) as error:
            _LOG.warning("%s: cannot be read, what it holds is learnt again: %s", self._file, error)
            return {}
        return entries if isinstance(entries, dict) else {}
