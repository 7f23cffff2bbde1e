"""How many calls of one tool run at once in this process."""

import asyncio
import os
import threading
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Self

from stillhouse.errors import ConfigError


class Places:
    """Places that callers of any event loop wait for, served in the order they came.

    Args:
        num_places: how many there are; None for no limit.
    """

    def __init__(self, num_places: int | None) -> None:
        self._num_free = num_places
        self._waiting: deque[Future[None]] = deque()
        self._lock = threading.Lock()

    @classmethod
    def of(cls, max_concurrency: int | None, *, sandbox: bool) -> Self:
        """As many as the user says; else no limit, but for processes, which cores have to share."""
        return cls(2 * (os.cpu_count() or 1) if max_concurrency is None and sandbox else max_concurrency)

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Holds a place for the block, once there is one."""
        place = self._ask()
        try:
            if not place.done():
                await asyncio.wrap_future(place)
            yield
        finally:
            # A place that came in the moment its caller was cancelled goes to the next.
            if not place.cancel():
                self._give_back()

    def _ask(self) -> "Future[None]":
        place: Future[None] = Future()
        with self._lock:
            if self._num_free is None or self._num_free > 0:
                self._num_free = None if self._num_free is None else self._num_free - 1
                place.set_result(None)
            else:
                self._waiting.append(place)
        return place

    def _give_back(self) -> None:
        with self._lock:
            while self._waiting:
                place = self._waiting.popleft()
                if place.set_running_or_notify_cancel():
                    place.set_result(None)
                    return
            if self._num_free is not None:
                self._num_free += 1


def check_limits(decorator: str, *, timeout_s: float | None, max_concurrency: int | None = None) -> None:
    """Returns where the limits a decorator was given are above 0.

    Raises:
        ConfigError: one is not.
    """
    if timeout_s is not None and timeout_s <= 0:
        raise ConfigError(f"@{decorator}(timeout_s={timeout_s!r}): expected a number of seconds above 0, or None")
    if max_concurrency is not None and max_concurrency < 1:
        raise ConfigError(f"@{decorator}(max_concurrency={max_concurrency!r}): expected 1 or more, or None")
