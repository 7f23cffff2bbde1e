"""An event loop in a thread of its own, for what many rollouts share: a browser, the sessions of an MCP server.

Such resources belong to the event loop they were opened in, and rollouts run in several loops. It also keeps the
traffic of a browser out of the loop that paces the teacher.
"""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines in its own event loop; started by the first one, and again by the first after `close`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

    @property
    def is_running(self) -> bool:
        """True between the first coroutine and `close`."""
        return self._thread is not None

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns or raises; cancelling the caller cancels it."""
        return await asyncio.wrap_future(self.submit(work))

    def run_blocking(self, work: Coroutine[Any, Any, T]) -> T:
        """As `run`, for callers without an event loop, or that may block theirs."""
        return self.submit(work).result()

    def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """As `run`, but returns a future."""
        with self._lock:
            if self._thread is None:
                ready = threading.Event()
                # A daemon: a hanging browser must not keep the process alive.
                self._thread = threading.Thread(target=self._main, args=(ready,), name=self._name, daemon=True)
                self._thread.start()
                ready.wait()
            assert self._loop is not None
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Cancels what still runs, waits for it to end, and ends the thread."""
        with self._lock:
            if self._thread is None or self._loop is None or self._stop is None:
                return
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
            self._thread = self._loop = self._stop = None

    def _main(self, ready: threading.Event) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            self._stop = asyncio.Event()
            ready.set()
            await self._stop.wait()

        asyncio.run(serve())
