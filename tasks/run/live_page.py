"""The page of a running flow, written by a thread every few seconds."""

import logging
import operator
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from stillhouse.errors import StillhouseError
from stillhouse.report.live import LiveData, write_live_page
from stillhouse.store import ArtifactStore
from stillhouse.store.atomic import replaced_atomically
from stillhouse.store.records import write_jsonl
from stillhouse.store.runs import RECENT_FILE
from stillhouse.types import Trajectory

_EVERY_S: Final = 2.0
_UPLOAD_EVERY_S: Final = 20.0
"""To a storage that machines share."""
_JOIN_TIMEOUT_S: Final = 10.0
_logger = logging.getLogger("stillhouse.live_page")


class LivePage:
    """Writes `report.html` of a run from its first second on; a full disk costs one warning.

    Beside it lie the last trajectories of the stage under way, `recent`, for `stillhouse view`.
    """

    def __init__(
        self,
        folder: Path,
        data: Callable[[], LiveData],
        recent: Callable[[], Sequence[Trajectory]],
        store: ArtifactStore,
        *,
        every_s: float = _EVERY_S,
    ) -> None:
        self._folder = folder
        self._data = data
        self._recent = recent
        self._written: Sequence[Trajectory] = []
        self._store = store
        self._every_s = every_s
        self._uploaded = time.monotonic()
        self._warned = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write_all, name="live-page", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        with suppress(OSError):
            (self._folder / RECENT_FILE).unlink(missing_ok=True)

    def stop(self) -> None:
        """Leave the page to the report that takes its place."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_TIMEOUT_S)

    def _write_all(self) -> None:
        while True:
            try:
                write_live_page(self._folder, self._data())
                self._write_recent()
                self._share()
            except StillhouseError as error:
                if not self._warned:
                    _logger.warning("the run's page cannot be written: %s. The run goes on", error)
                self._warned = True
            if self._ended.wait(self._every_s):
                return

    def _write_recent(self) -> None:
        recent = self._recent()
        if len(recent) == len(self._written) and all(map(operator.is_, recent, self._written)):
            # Its time says that the run still goes on.
            with suppress(OSError):
                os.utime(self._folder / RECENT_FILE)
            return
        self._written = recent
        with replaced_atomically(self._folder / RECENT_FILE) as file:
            write_jsonl(file, recent)

    def _share(self) -> None:
        now = time.monotonic()
        if now - self._uploaded >= _UPLOAD_EVERY_S:
            self._uploaded = now
            self._store.share_folder(self._folder)
