"""Runs and event loops that a SIGTERM ends.

Prefect turns SIGTERM into an exception raised in the main thread wherever it happens to be. Inside an event loop that
is usually a callback, where asyncio logs the exception and goes on: a cancelled flow would run to its end.

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
    """SIGTERM came. Like KeyboardInterrupt it is no Exception, which a stage might take for a failure of its own."""


@contextmanager
def raised_on_sigterm() -> Iterator[None]:
    """Has SIGTERM raise `Terminated` inside the block, once, in place of ending the process where it stands.

    A flow inside it is marked crashed first: Prefect passes the signal on to the handler that it found.
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
    """`asyncio.run(work)` that a SIGTERM cancels; afterwards the signal's own handler is called, as if it came then.

    Raises:
        Whatever the handler in force raises, for instance Prefect's TerminationSignal; else what `work` raises.
    """
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
