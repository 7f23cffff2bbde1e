"""A thread that copies what this machine paid for to object storage, from which another machine goes on."""

import logging
import threading
from collections.abc import Callable
from typing import Final

from stillhouse.errors import StoreError

INTERVAL_S: Final = 60.0

logger = logging.getLogger(__name__)


class Copier:
    """Uploads by `hand_on` what is new every so many seconds, and at the end; failures are logged and tried again."""

    def __init__(self, hand_on: Callable[[], object], interval_s: float = INTERVAL_S) -> None:
        self._upload, self._interval_s = hand_on, interval_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="copier", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        self._hand_on()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_s):
            self._hand_on()

    def _hand_on(self) -> None:
        try:
            self._upload()
        except (StoreError, OSError) as error:
            logger.warning("answers of this machine are not on the storage yet: %s", error)
