"""The child in which code that is not trusted runs: forked inside the jail, awaited by the jail's first process."""

import os
import signal
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def fork_child(run: Callable[[], T], finish: Callable[[T], int]) -> int:
    """Forks a child that runs untrusted code, and returns its pid.

    Args:
        run: calls the code. Processes that the code forks return from it as well.
        finish: turns the result into the child's exit code; called in the child alone.
    """
    child = os.fork()
    if child != 0:
        return child
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        pid = os.getpid()
        result = run()
        if os.getpid() == pid:
            status = finish(result)
    finally:
        # Past whatever the code registered for the end of the process, and without waiting for its threads.
        os._exit(status)


def wait_for_child(child: int) -> int:
    """The child's exit code, or a signal's number below 0; reaps the orphans of the jail meanwhile."""
    while True:
        pid, status = os.wait()
        if pid == child:
            return os.waitstatus_to_exitcode(status)
