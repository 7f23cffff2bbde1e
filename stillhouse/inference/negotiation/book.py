"""`TermsBook`: the terms of one endpoint's model, shared in this process and kept beside the journal."""

import logging
import threading
from pathlib import Path
from typing import ClassVar, Final

from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.learnt_file import LearntFile
from stillhouse.inference.negotiation.terms import Terms

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

    def __init__(self, endpoint: Endpoint, path: str, folder: Path | None) -> None:
        self._name = f"{endpoint.base_url} {endpoint.model} {path}"
        # A local server has another port each time.
        folder = None if endpoint.is_local else folder
        self._file = None if folder is None else LearntFile(folder / TERMS_FILE, self._name, Terms, _STALE_S)
        with self.lock:
            if self._file and self._name not in self._known and (kept := self._file.load()) is not None:
                self._known[self._name] = kept
                _LOG.warning("%s: model %s: as its refusals taught before: %s", endpoint.base_url, endpoint.model, kept)

    @property
    def terms(self) -> Terms:
        return self._known.get(self._name, Terms())

    def put(self, terms: Terms) -> None:
        """Let the terms hold for all requests from now on."""
        with self.lock:
            self._known[self._name] = terms
            if self._file is not None:
                self._file.save(terms)
