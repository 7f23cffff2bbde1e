"""Blocking functions under a time limit, in threads that hold up neither the event loop nor the end of the process.

An executor's threads are joined when the interpreter exits, so one hanging tool would keep the process alive for ever;
daemon threads are not. A thread cannot be killed: one that hangs stays until the process ends.
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class TimeLimitReached(Exception):
    """The function had not returned after its time limit. Apart from TimeoutError, which the function may raise."""


def start_in_thread(function: Callable[[], Any]) -> "Future[Any]":
    """A future of what `function` returns or raises, SystemExit included, run in a daemon thread of its own."""
    future: Future[Any] = Future()
    # A running future cannot be cancelled, so the late result of a call that was given up still finds its place.
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


async def run_in_thread(function: Callable[[], Any], timeout_s: float) -> Any:
    """What `function` returns.

    Raises:
        TimeLimitReached: it has not returned after `timeout_s` seconds.
    """
    waiting = asyncio.wrap_future(start_in_thread(function))
    return await within(waiting, timeout_s)


async def within(waiting: "asyncio.Future[Any]", timeout_s: float) -> Any:
    """What `waiting` gives; after `timeout_s` seconds it is cancelled, and not waited for, as it may refuse to end.

    Raises:
        TimeLimitReached: nothing was given in time.
    """
    try:
        done, _ = await asyncio.wait({waiting}, timeout=timeout_s)
    except asyncio.CancelledError:
        waiting.cancel()
        raise
    if not done:
        waiting.cancel()
        raise TimeLimitReached
    if waiting.cancelled():
        raise RuntimeError("it was cancelled from inside")
    return waiting.result()
