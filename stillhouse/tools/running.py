"""Runs a user's function in this process, plain or async, under a time limit, and a few calls of it at once.

A plain function runs in a daemon thread of its own, which cannot be killed and stays if it hangs; the threads of an
executor are joined when the interpreter exits, and one hanging tool would keep the process alive for ever.

Futures and event loops take some errors (StopIteration, KeyboardInterrupt, CancelledError) for their own end: where a
function raises them, a `ToolError` stands for them.
"""

import asyncio
import contextvars
import inspect
import os
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import CancelledError, Future
from contextlib import asynccontextmanager
from typing import Any, Self, TypeVar

from stillhouse.errors import ConfigError
from stillhouse.processes.loop_thread import LoopThread
from stillhouse.tools.context import ToolError, explain

T = TypeVar("T")

# One loop for the async functions of all callers: a client held by a user's file belongs to one loop, and a function
# that blocks must hold up neither the loop that paces the teacher nor the clock of its own timeout.
_ASYNC_FUNCTIONS = LoopThread("async tools")
# For callers without an event loop; it must not run a user's code in its own loop.
_BLOCKING_CALLERS = LoopThread("tool calls")
wait_for, submit = _BLOCKING_CALLERS.run_blocking, _BLOCKING_CALLERS.submit


class TimeLimitReached(Exception):
    """The function had not returned after its time limit. Apart from TimeoutError, which the function may raise."""


async def run_function(
    function: Callable[..., Any],
    kwargs: dict[str, Any],
    timeout_s: float,
    read: Callable[[Any], Any] = lambda value: value,
) -> Any:
    """Return what `read`, which may run the user's code too, makes of the function's value; awaitables are awaited.

    Raise TimeLimitReached after `timeout_s`, or what the function raised; a `ToolError` in place of KeyboardInterrupt,
    StopIteration and their like.
    """
    deadline = time.monotonic() + timeout_s

    def call() -> Any:
        value = function(**kwargs)
        return value if inspect.isawaitable(value) else read(value)

    if inspect.iscoroutinefunction(function):
        value = function(**kwargs)
    else:
        value = await _settled(_start_thread(call), deadline)
    if inspect.isawaitable(value):
        value = await _settled(_ASYNC_FUNCTIONS.submit(_awaited(value, read)), deadline)
    return value


async def awaited(value: Any) -> Any:
    """Return the value behind any number of awaitables: a function may return a coroutine that it did not await."""
    while inspect.isawaitable(value):
        value = await value
    return value


def run_awaitable(value: Any) -> Any:
    """Return what `awaited` does, in an event loop of its own."""
    return asyncio.run(awaited(value)) if inspect.isawaitable(value) else value


async def _settled(future: Future[Any], deadline: float) -> Any:
    running = asyncio.wrap_future(future)
    try:
        done, _ = await asyncio.wait({running}, timeout=deadline - time.monotonic())
    except asyncio.CancelledError:
        running.cancel()
        raise
    if not done:
        # Not awaited: it may refuse to end.
        running.cancel()
        raise TimeLimitReached
    return running.result()


def _start_thread(function: Callable[[], Any]) -> "Future[Any]":
    future: Future[Any] = Future()
    # A running future cannot be cancelled, so the late result of an abandoned call can still be set.
    future.set_running_or_notify_cancel()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            future.set_result(context.run(function))
        except BaseException as error:
            future.set_exception(_harmless(error))

    threading.Thread(target=run, name="tool", daemon=True).start()
    return future


async def _awaited(value: Awaitable[Any], read: Callable[[Any], Any]) -> Any:
    try:
        return read(await awaited(value))
    except BaseException as error:
        failure = _harmless(error)
    raise failure


def _harmless(error: BaseException) -> Exception:
    if isinstance(error, Exception) and not isinstance(error, StopIteration | CancelledError):
        return error
    return ToolError(explain(error))


class ConcurrencyLimit:
    """A semaphore across event loops, first come, first served, of `num_slots`; None sets no limit."""

    def __init__(self, num_slots: int | None) -> None:
        self._num_free = num_slots
        self._waiting: deque[Future[None]] = deque()
        self._lock = threading.Lock()

    @classmethod
    def of(cls, max_concurrency: int | None, *, sandbox: bool) -> Self:
        """Return the user's limit; without one, no limit, or twice the number of cores for processes of a sandbox."""
        return cls(2 * (os.cpu_count() or 1) if max_concurrency is None and sandbox else max_concurrency)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for a free slot and hold it for the block."""
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
    """Raise ConfigError if a limit given to a decorator is not positive."""
    if timeout_s is not None and timeout_s <= 0:
        raise ConfigError(f"@{decorator}(timeout_s={timeout_s!r}): expected a number of seconds above 0, or None")
    if max_concurrency is not None and max_concurrency < 1:
        raise ConfigError(f"@{decorator}(max_concurrency={max_concurrency!r}): expected 1 or more, or None")
