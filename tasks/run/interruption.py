"""Runs and event loops that a SIGTERM ends.

Prefect turns SIGTERM into an exception in the main thread. Inside an event loop that is usually raised in a callback,
where asyncio logs the exception and goes on: a cancelled flow would run to its end.

The loops are uvloop's where it exists: a quarter less CPU for each request of a rollout.
"""

import asyncio
import signal
import sys
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

if sys.platform == "win32":
    from asyncio import new_event_loop
else:
    from uvloop import new_event_loop

T = TypeVar("T")


class Terminated(BaseException):
    """The process got SIGTERM. Like KeyboardInterrupt it is no Exception, so that no stage handles it as a failure."""


@contextmanager
def raised_on_sigterm() -> Iterator[None]:
    """Make SIGTERM raise `Terminated` inside the block, once, instead of ending the process.

    A flow inside it is marked crashed first: Prefect passes the signal on to the handler that was there before its own.
    """

    def terminate(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    handler = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


def run_until_done(work: Coroutine[Any, Any, T]) -> T:
    """Do as `asyncio.run`, with SIGTERM cancelling `work`; the signal's handler, such as Prefect's, is called then."""
    if threading.current_thread() is not threading.main_thread():
        return _run(work)
    handler = signal.getsignal(signal.SIGTERM)
    terminated = False

    async def main() -> T:
        task = asyncio.ensure_future(work)

        def terminate() -> None:
            nonlocal terminated
            terminated = True
            task.cancel()

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminate)
        return await task

    try:
        return _run(main())
    finally:
        signal.signal(signal.SIGTERM, handler)
        if terminated:
            # With the default action this ends the process; with Prefect's handler it raises.
            signal.raise_signal(signal.SIGTERM)


def _run(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)
