"""How many calls of one tool or reward run at once in this process."""

import asyncio
import os
import threading
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Self

from stillhouse.errors import ConfigError


class ConcurrencyLimit:
    """A semaphore across event loops, first come, first served.

    Args:
        num_slots: most holders at once; None for no limit.
    """

    def __init__(self, num_slots: int | None) -> None:
        self._num_free = num_slots
        self._waiting: deque[Future[None]] = deque()
        self._lock = threading.Lock()

    @classmethod
    def of(cls, max_concurrency: int | None, *, sandbox: bool) -> Self:
        """The user's limit; without one, no limit, or twice the number of cores for processes of a sandbox."""
        return cls(2 * (os.cpu_count() or 1) if max_concurrency is None and sandbox else max_concurrency)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Waits for a free slot and holds it for the block."""
        slot: Future[None] = Future()
        with self._lock:
            if self._num_free is None or self._num_free > 0:
                self._num_free = None if self._num_free is None else self._num_free - 1
                slot.set_result(None)
            else:
                self._waiting.append(slot)
        try:
            if not slot.done():
                await asyncio.wrap_future(slot)
            yield
        finally:
            # A slot granted at the moment its caller was cancelled goes to the next.
            if not slot.cancel():
                self._release()

    def _release(self) -> None:
        with self._lock:
            while self._waiting:
                slot = self._waiting.popleft()
                if slot.set_running_or_notify_cancel():
                    slot.set_result(None)
                    return
            if self._num_free is not None:
                self._num_free += 1


def validate_limits(decorator: str, *, timeout_s: float | None, max_concurrency: int | None = None) -> None:
    """Raises ConfigError if a limit given to a decorator is not positive."""
    if timeout_s is not None and timeout_s <= 0:
        raise ConfigError(f"@{decorator}(timeout_s={timeout_s!r}): expected a number of seconds above 0, or None")
    if max_concurrency is not None and max_concurrency < 1:
        raise ConfigError(f"@{decorator}(max_concurrency={max_concurrency!r}): expected 1 or more, or None")
