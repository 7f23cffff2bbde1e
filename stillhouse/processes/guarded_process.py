"""Child processes that never outlive their parent and never leave children of their own behind.

The child leads a session of its own, so that its whole process group can be signalled at once. It holds the reading end
of a pipe whose writing end only the parent has: however the parent dies, the pipe closes and a thread of the child ends
the group. `python -m stillhouse.processes.guarded_process MODULE ARGS` starts that thread before it runs the module,
whose imports may take seconds. A module that needs torch is forked from a process that has imported it (`forked`).
"""

import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Self

from stillhouse.processes.forked import ForkedChild, can_fork, fork_child


class GuardedProcess:
    """A Python module run as a child, `python -m MODULE ARGS`, whose standard output the parent reads line by line.

    Leaving its block, also by an exception or a signal turned into one, stops the group: by SIGTERM, and `grace_s`
    later by SIGKILL. The variables of `env` come on top of the parent's, or stand alone if not `inherit_env`; open
    files of `pass_fds` keep their numbers. A module that `needs_torch` starts in milliseconds after the first such one.
    """

    def __init__(
        self,
        module: str,
        args: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        inherit_env: bool = True,
        pass_fds: Sequence[int] = (),
        needs_torch: bool = False,
        grace_s: float = 10.0,
    ) -> None:
        self._grace_s = grace_s
        self._is_stopped = False
        environment = {**(os.environ if inherit_env else {}), **(env or {})}
        forked = fork_child(module, args, environment) if needs_torch and can_fork() else None
        self._process: ForkedChild | subprocess.Popen[str] = forked or subprocess.Popen(
            # -P: a user's json.py in the working directory must not shadow Python's own.
            [sys.executable, "-P", "-m", "stillhouse.processes.guarded_process", module, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None,
            text=True,
            start_new_session=True,
            env=environment,
            pass_fds=pass_fds,
        )

    @property
    def pid(self) -> int:
        """Return the process id of the child, and of its group."""
        return self._process.pid

    @property
    def lines(self) -> IO[str]:
        """Return the child's standard output."""
        assert self._process.stdout is not None
        return self._process.stdout

    def poll(self) -> int | None:
        """Return the exit code, or None while the child runs."""
        return self._process.poll()

    def wait(self, timeout_s: float | None = None) -> int:
        """Return the exit code, once there is one."""
        return self._process.wait(timeout_s)

    def interrupt(self, grace_s: float) -> None:
        """Send SIGINT to the child's group and return once the child has ended, or `grace_s` later."""
        if not self._is_stopped and self._process.poll() is None:
            self._signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_s)

    def stop(self, grace_s: float | None = None) -> None:
        """End the child's group by SIGTERM, then SIGKILL after the grace period or when the wait is interrupted."""
        if self._is_stopped:
            # Another process may have its pid by now.
            return
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
            if isinstance(self._process, ForkedChild):
                self._process.release()
            self._is_stopped = True

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def start_isolated(
    module: str, args: Sequence[str], env: Mapping[str, str], connection: socket.socket
) -> GuardedProcess:
    """Start a module that sees this process's import path, and no environment variables but PATH, LANG and `env`.

    The connection is the child's end of a socket pair, closed here; its file number follows the arguments.
    """
    inherited = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    number = connection.fileno()
    with connection:
        return GuardedProcess(
            module,
            [*args, str(number)],
            {**inherited, **env, "PYTHONPATH": os.pathsep.join(sys.path)},
            inherit_env=False,
            pass_fds=[number],
        )


def _kill_group_at_end_of_input() -> None:
    with suppress(OSError):
        while os.read(0, 4096):
            pass
    os.killpg(os.getpgid(0), signal.SIGKILL)


def run_guarded(module: str) -> None:
    """Run the module whose arguments are in `sys.argv`, in a process that ends with its parent."""
    threading.Thread(target=_kill_group_at_end_of_input, name="die-with-parent", daemon=True).start()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    run_guarded(sys.argv[0])
