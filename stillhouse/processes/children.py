"""Child processes that never outlive their parent and never leave children of their own behind.

The child leads its own session, so that its whole group can be signalled at once. It holds the reading end of a pipe
whose writing end only the parent has: when the parent dies, however it dies, the pipe closes and the child's guard
thread, which `stillhouse.processes.guarded` starts before the child's own module, ends the group. This needs no signal
from the kernel and no thread of the parent to stay alive.

What a child starts in a session of its own is out of its group's reach, and calls `die_with_starter()`.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Final, Self

_GUARDED: Final = "STILLHOUSE_GUARDED"
_STARTER: Final = "STILLHOUSE_STARTER"
_PR_SET_PDEATHSIG: Final = 1
_LOOK_S = 1.0


class GuardedProcess:
    """A Python module run as a child, `python -m MODULE ARGS`, whose standard output the parent reads line by line.

    Use as a context manager: leaving the block, also by an exception or a signal turned into one, stops the group.

    Args:
        module: the module to run.
        args: its arguments.
        env: environment variables of the child, on top of the parent's.
        inherit_env: False gives the child no variable of the parent's, only those of `env`.
        pass_fds: open files the child shares, under the same numbers.
        grace_s: seconds the child has to end by itself when it is stopped.
    """

    def __init__(
        self,
        module: str,
        args: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        inherit_env: bool = True,
        pass_fds: Sequence[int] = (),
        grace_s: float = 10.0,
    ) -> None:
        self._grace_s = grace_s
        self._process = subprocess.Popen(
            # -P: a user's json.py in the folder of the run is not taken for Python's own.
            [sys.executable, "-P", "-m", "stillhouse.processes.guarded", module, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None,
            text=True,
            start_new_session=True,
            env={**(os.environ if inherit_env else {}), **(env or {}), _GUARDED: "1"},
            pass_fds=pass_fds,
        )

    @property
    def pid(self) -> int:
        """Process id of the child, and of its group."""
        return self._process.pid

    @property
    def lines(self) -> IO[str]:
        """The child's standard output."""
        assert self._process.stdout is not None
        return self._process.stdout

    def poll(self) -> int | None:
        """The exit code, or None while the child runs."""
        return self._process.poll()

    def wait(self, timeout_s: float | None = None) -> int:
        """The exit code, once there is one."""
        return self._process.wait(timeout_s)

    def stop(self, grace_s: float | None = None) -> None:
        """Ends the child's group: SIGTERM, and SIGKILL for what is left after a while, or when the wait is broken off.

        Args:
            grace_s: seconds between the two; None takes what the process was made with.
        """
        try:
            if self._process.poll() is None:
                self._signal(signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(self._grace_s if grace_s is None else grace_s)
        finally:
            self._signal(signal.SIGKILL)
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with suppress(BrokenPipeError):
                        pipe.close()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def exit_with(parent: int) -> None:
    """Ends this process soon after the process `parent` is no longer its parent; for workers of a pool."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_S)
        os._exit(1)

    threading.Thread(target=watch, name="exit-with-parent", daemon=True).start()


def die_with_parent() -> None:
    """Ends the whole process group of a child of `GuardedProcess` as soon as the parent is gone.

    Does nothing in any other process, or when it is called again.
    """
    if os.environ.pop(_GUARDED, None) is None:
        return

    def watch() -> None:
        with suppress(OSError):
            while os.read(0, 4096):
                pass
        os.killpg(os.getpgid(0), signal.SIGKILL)

    threading.Thread(target=watch, name="die-with-parent", daemon=True).start()


def name_starter() -> None:
    """Called by a process whose children are to call `die_with_starter()`, before it starts them."""
    os.environ[_STARTER] = str(os.getpid())


def die_with_starter() -> None:
    """Called by a child in a session of its own, at its start: it is killed as soon as the process that started it is.

    The kernel sees to it, on Linux, when the thread ends that started the child; elsewhere nobody does.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The starter may have gone before the kernel was asked.
    if os.getppid() != int(os.environ.pop(_STARTER, os.getppid())):
        os.kill(os.getpid(), signal.SIGKILL)
