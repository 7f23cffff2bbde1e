"""The fork server: it has loaded the code to run, and forks for each call."""

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
    """Serves calls in jails. Made before any code is loaded, so that nothing loaded prints to standard output.

    The first line on standard output is JSON: null once calls are served, or why they cannot be.
    """

    def __init__(self) -> None:
        # The caller's import path came this way; the code must not see it.
        os.environ.pop("PYTHONPATH", None)
        self._ready = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def refuse(self, problem: str) -> None:
        """Reports why no call can be served."""
        self._report(problem)

    def serve(self, control: socket.socket, main: JailMain) -> None:
        """Reports readiness, and serves calls until the caller closes `control`.

        Args:
            control: receives a packet for each call: the `CallLimits` as JSON, and the socket of the call.
            main: runs in each call's jail.
        """
        # Supervisors are not waited for. Set after loading, which may have needed the default.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        interpreter_paths()
        # Frozen objects are not touched by collections, so their pages stay shared with all forks.
        gc.collect()
        gc.freeze()
        self._report(None)
        while True:
            packet, handles, _, _ = socket.recv_fds(control, 1 << 16, 1)
            if not handles:
                return
            with socket.socket(fileno=handles[0]) as call:
                if os.fork() == 0:
                    control.close()
                    supervise(call, _limits(json.loads(packet)), main)

    def _report(self, problem: str | None) -> None:
        with self._ready:
            print(json.dumps(problem), file=self._ready, flush=True)


def problem_with_jail() -> str | None:
    """Why no jail can be made here; None if one can."""
    reader, writer = os.pipe()
    entry = JailEntry()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            entry.enter(Permissions())
            inside = os.fork()
            if inside == 0:
                _try_to_drop_privileges(writer)
            os.waitpid(inside, 0)
        except JailUnavailable as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    entry.map_users(child)
    with os.fdopen(reader, "rb") as file:
        problem = file.read().decode()
    os.waitpid(child, 0)
    return problem or None


def _try_to_drop_privileges(writer: int) -> None:
    try:
        drop_privileges(MAX_PROCESSES)
    except JailUnavailable as error:
        os.write(writer, str(error).encode())
    finally:
        os._exit(0)


def _limits(packet: JsonObject) -> CallLimits:
    permissions = Permissions(packet["network"], tuple(packet["files"]))
    return CallLimits(packet["timeout_s"], packet["max_cpu_s"], permissions)
