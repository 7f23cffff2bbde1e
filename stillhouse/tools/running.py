"""Runs a user's function in this process, plain or async, under a time limit."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from stillhouse.tools.context import ToolError
from stillhouse.tools.loop_thread import LoopThread
from stillhouse.tools.threads import run_in_thread, within

T = TypeVar("T")

# One loop for the async functions of all callers: a client that a user's file holds belongs to one loop, and a function
# that blocks holds up neither the loop that paces the teacher nor the clock of its own timeout.
_ASYNC_FUNCTIONS = LoopThread("async tools")
_BLOCKING_CALLERS = LoopThread("tool calls")


async def run_function(function: Callable[..., Any], given: dict[str, Any], timeout_s: float) -> Any:
    """What the function returns or raises; a plain one runs in a thread.

    Raises:
        TimeLimitReached: it has not returned after `timeout_s` seconds.
    """
    if inspect.iscoroutinefunction(function):
        running = asyncio.ensure_future(_ASYNC_FUNCTIONS.run(_contained(function(**given))))
        return await within(running, timeout_s)
    return await run_in_thread(lambda: function(**given), timeout_s)


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns, for callers without an event loop; it must not run a user's code in the loop it is in."""
    return _BLOCKING_CALLERS.run_blocking(work)


def submit(work: Coroutine[Any, Any, T]) -> Future[T]:
    """As `wait_for`, for callers who wait for it later."""
    return _BLOCKING_CALLERS.submit(work)


async def _contained(work: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await work
    # Either would end the loop that all async functions share.
    except (SystemExit, KeyboardInterrupt) as error:
        raise ToolError(f"{type(error).__name__}: {error}") from error
