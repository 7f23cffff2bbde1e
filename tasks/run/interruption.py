"""Runs and event loops that a SIGTERM ends, and runs that somebody pauses on their page.

Prefect turns SIGTERM into an exception in the main thread, and takes a cancel for one only where its own handler is in
force: event loops therefore have a thread of their own. Of a pause it learns by itself, in a thread, but raises that
only between tasks; a long one asks. Of the end of its record it learns nothing.

The loops are uvloop's where it exists: a quarter less CPU for each request of a rollout.
"""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future, wait
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import copy_context
from threading import Thread
from types import FrameType
from typing import Any, Final, TypeVar

from prefect.context import FlowRunContext
from prefect.exceptions import Pause
from prefect.states import Suspended

from tasks.run.prefect_api import is_deleted

if sys.platform == "win32":
    from asyncio import new_event_loop
else:
    from uvloop import new_event_loop

T = TypeVar("T")

_POLL_S: Final = 1.0


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
    """Do as `asyncio.run`, in another thread; an exception in this one, such as a signal's, cancels `work` first."""
    context = copy_context()
    started: Future[Any] = Future()
    done: Future[T] = Future()

    async def main() -> T:
        if not started.set_running_or_notify_cancel():
            raise asyncio.CancelledError
        started.set_result(asyncio.current_task())
        return await work

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                result = runner.run(main(), context=context)
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(result)

    try:
        # No executor: one that is interrupted while it takes the work on may run it, and nobody has its future.
        Thread(target=run, name="event-loop").start()
        # Not in one go: an exception that another thread raises here comes with the next instruction.
        while not wait([done], _POLL_S).done:
            continue
    except BaseException:
        if started.cancel():
            work.close()
        else:
            # It may have ended meanwhile, and its loop with it.
            with suppress(RuntimeError):
                started.result().get_loop().call_soon_threadsafe(started.result().cancel)
            wait([done])
        raise
    return done.result()


def raise_if_paused() -> None:
    """Raise prefect.exceptions.Pause if this flow run, one of a deployment, has been paused on its page."""
    context = FlowRunContext.get()
    if context is not None:
        context.flow_run_suspension_request.raise_if_requested()


def pause_if_deleted() -> None:
    """End this flow run as a paused one if its record was deleted: it saves its work, and asks and pays no more."""
    context = FlowRunContext.get()
    if context and context.flow_run and is_deleted(context.flow_run.id):
        context.flow_run_suspension_request.mark_requested(Suspended())


@contextmanager
def pause_prevails() -> Iterator[None]:
    """Raise the pause in place of what interrupts a paused run while it saves, such as the loss of its place."""
    try:
        yield
    except BaseException:
        raise_if_paused()
        raise


@asynccontextmanager
async def stopped_by_pause(stop: Callable[[BaseException], None]) -> AsyncIterator[None]:
    """Call `stop` with prefect.exceptions.Pause as soon as this flow run is paused inside the block."""

    async def watch() -> None:
        while True:
            try:
                raise_if_paused()
            except Pause as pause:
                return stop(pause)
            await asyncio.sleep(_POLL_S)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
