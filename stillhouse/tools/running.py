"""Runs a user's function in this process, plain or async, under a time limit.

A plain function runs in a daemon thread of its own, which cannot be killed and stays if it hangs; the threads of an
executor are joined when the interpreter exits, and one hanging tool would keep the process alive for ever.
"""

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from stillhouse.tools.context import ToolError
from stillhouse.tools.loop_thread import LoopThread

T = TypeVar("T")

# One loop for the async functions of all callers: a client held by a user's file belongs to one loop, and a function
# that blocks must hold up neither the loop that paces the teacher nor the clock of its own timeout.
_ASYNC_FUNCTIONS = LoopThread("async tools")
_BLOCKING_CALLERS = LoopThread("tool calls")


class TimeLimitReached(Exception):
    """The function had not returned after its time limit. Apart from TimeoutError, which the function may raise."""


async def run_function(function: Callable[..., Any], kwargs: dict[str, Any], timeout_s: float) -> Any:
    """What the function returns or raises.

    Raises:
        TimeLimitReached: it has not returned after `timeout_s` seconds.
    """
    if inspect.iscoroutinefunction(function):
        running = asyncio.wrap_future(_ASYNC_FUNCTIONS.submit(_without_exit(function(**kwargs))))
    else:
        running = asyncio.wrap_future(_start_thread(lambda: function(**kwargs)))
    try:
        done, _ = await asyncio.wait({running}, timeout=timeout_s)
    except asyncio.CancelledError:
        running.cancel()
        raise
    if not done:
        # Not awaited: it may refuse to end.
        running.cancel()
        raise TimeLimitReached
    if running.cancelled():
        raise RuntimeError("it was cancelled from inside")
    return running.result()


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns, for callers without an event loop; it must not run a user's code in the loop it is in."""
    return _BLOCKING_CALLERS.run_blocking(work)


def submit(work: Coroutine[Any, Any, T]) -> Future[T]:
    """As `wait_for`, but returns a future."""
    return _BLOCKING_CALLERS.submit(work)


def _start_thread(function: Callable[[], Any]) -> "Future[Any]":
    """A future of what `function` returns or raises, SystemExit included."""
    future: Future[Any] = Future()
    # A running future cannot be cancelled, so the late result of an abandoned call can still be set.
    future.set_running_or_notify_cancel()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            result = context.run(function)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name="tool", daemon=True).start()
    return future


async def _without_exit(work: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await work
    # Either would end the loop that all async functions share.
    except (SystemExit, KeyboardInterrupt) as error:
        raise ToolError(f"{type(error).__name__}: {error}") from error
