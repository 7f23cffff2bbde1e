"""How processes end: together with their parent, and without the seconds that Python takes to tear down torch."""

import atexit
import ctypes
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

_PARENT_VARIABLE: Final = "STILLHOUSE_PARENT"
_PR_SET_PDEATHSIG: Final = 1
_CHECK_EVERY_S: Final = 1.0


def exit_with_parent(parent: int) -> None:
    """End this process soon after the process `parent` is no longer its parent; for workers of a pool."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_CHECK_EVERY_S)
        os._exit(1)

    threading.Thread(target=watch, name="exit-with-parent", daemon=True).start()


def announce_parent() -> None:
    """Tell the children this process starts from now on its pid, for `die_with_parent`."""
    os.environ[_PARENT_VARIABLE] = str(os.getpid())


def die_with_parent() -> None:
    """Have the kernel kill this process, a child in a session of its own, when the thread that started it ends.

    Linux only; elsewhere it does no more than end a process whose parent has already gone.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have ended before the call above.
    if os.getppid() != int(os.environ.pop(_PARENT_VARIABLE, os.getppid())):
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def without_teardown() -> Iterator[None]:
    """Skip, around a process's main function, the freeing of modules, which takes seconds once torch is imported.

    Threads are joined and functions registered with `atexit` inside the block run as usual, so that what they flush is
    written. A SystemExit that leaves the block gives the exit code, else it is 0; other exceptions are left to Python.
    """
    exit_codes: list[int] = []

    def leave() -> None:
        if exit_codes:
            logging.shutdown()
            for stream in (sys.stdout, sys.stderr):
                # The reader may have gone.
                with suppress(OSError, ValueError):
                    stream.flush()
            os._exit(exit_codes[0])

    # What is registered first is called last.
    atexit.register(leave)
    try:
        yield
    except SystemExit as end:
        # Python prints any other value and exits with 1.
        exit_codes.append(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise
    exit_codes.append(0)
