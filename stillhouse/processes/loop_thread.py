"""An event loop in a thread of its own, for what many rollouts share: a browser, the sessions of an MCP server.

Such resources belong to the event loop they were opened in, and rollouts run in several loops. It also keeps the
traffic of a browser out of the loop that paces the teacher.
"""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines in its own event loop; started by the first one, and again by the first after `close`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    @property
    def is_running(self) -> bool:
        """Return True between the first coroutine and `close`."""
        return self._thread is not None

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return or raise what `work` does; cancelling the caller cancels it."""
        return await asyncio.wrap_future(self.submit(work))

    def run_blocking(self, work: Coroutine[Any, Any, T]) -> T:
        """Return as `run` does, for callers without an event loop, or that may block theirs."""
        return self.submit(work).result()

    def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._started = Future()
                # A daemon: a hanging browser must not keep the process alive.
                self._thread = threading.Thread(target=run_loop, args=(self._serve(),), name=self._name, daemon=True)
                self._thread.start()
            loop, _ = self._started.result()
            return asyncio.run_coroutine_threadsafe(work, loop)

    def close(self) -> None:
        """Cancel what still runs, wait for it to end, and end the thread."""
        with self._lock:
            if self._thread is not None:
                loop, stop = self._started.result()
                loop.call_soon_threadsafe(stop.set)
                self._thread.join()
                self._thread = None

    async def _serve(self) -> None:
        stop = asyncio.Event()
        self._started.set_result((asyncio.get_running_loop(), stop))
        await stop.wait()


def run_loop(main: Coroutine[Any, Any, None]) -> None:
    """Run as `asyncio.run`, but go on when a task of a user's function raises SystemExit or stops the loop."""
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        task = loop.create_task(main)
        while not task.done():
            with suppress(BaseException):
                loop.run_until_complete(task)
