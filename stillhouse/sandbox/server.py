"""The process that has loaded what there is to run, and forks for each call."""

import gc
import json
import os
import signal
import socket

from stillhouse.sandbox.jail import JailEntry, Permissions, drop_privileges
from stillhouse.sandbox.limits import MAX_PROCESSES
from stillhouse.sandbox.root import interpreter_paths
from stillhouse.sandbox.supervisor import CallLimits, JailMain, supervise
from stillhouse.sandbox.syscalls import JailUnavailable
from stillhouse.types import JsonObject


class ForkServer:
    """The start of a server: standard output says whether it is ready, and nothing that is loaded can print there.

    The first line on standard output is JSON: null when calls are served, or why they cannot be.
    """

    def __init__(self) -> None:
        # The path of the caller's modules came this way; it is no variable for the code to see.
        os.environ.pop("PYTHONPATH", None)
        self._ready = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def refuse(self, problem: str) -> None:
        """Says why no call can be served."""
        self._say(problem)

    def serve(self, control: socket.socket, work: JailMain) -> None:
        """Says that calls are served, and serves them until the caller closes `control`.

        Args:
            control: brings a packet for each call: the `CallLimits` as JSON, and the socket of the call.
            work: runs in each call's jail.
        """
        # Supervisors are not waited for. What was loaded may have needed the default.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        interpreter_paths()
        # Collected now and never touched again, its pages stay shared with all forks.
        gc.collect()
        gc.freeze()
        self._say(None)
        while True:
            packet, handles, _, _ = socket.recv_fds(control, 1 << 16, 1)
            if not handles:
                return
            with socket.socket(fileno=handles[0]) as call:
                if os.fork() == 0:
                    control.close()
                    supervise(call, _limits(json.loads(packet)), work)

    def _say(self, problem: str | None) -> None:
        with self._ready:
            print(json.dumps(problem), file=self._ready, flush=True)


def problem_with_jail() -> str | None:
    """Why no jail can be made here; None where one can."""
    problems, problem = os.pipe()
    entry = JailEntry()
    child = os.fork()
    if child == 0:
        os.close(problems)
        try:
            entry.enter(Permissions())
            inside = os.fork()
            if inside == 0:
                _try(problem)
            os.waitpid(inside, 0)
        except JailUnavailable as error:
            os.write(problem, str(error).encode())
        finally:
            os._exit(0)
    os.close(problem)
    entry.hold(child)
    with os.fdopen(problems, "rb") as file:
        said = file.read().decode()
    os.waitpid(child, 0)
    return said or None


def _try(problem: int) -> None:
    try:
        drop_privileges(MAX_PROCESSES)
    except JailUnavailable as error:
        os.write(problem, str(error).encode())
    finally:
        os._exit(0)


def _limits(packet: JsonObject) -> CallLimits:
    permissions = Permissions(packet["network"], tuple(packet["files"]))
    return CallLimits(packet["timeout_s"], packet["max_cpu_s"], permissions)
