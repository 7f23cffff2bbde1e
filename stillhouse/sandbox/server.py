"""The fork server: it has loaded the code to run, and forks for each call."""

import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Final

from stillhouse.errors import ConfigError
from stillhouse.sandbox.jail import Permissions, drop_privileges, interpreter_paths
from stillhouse.sandbox.supervisor import CallLimits, JailMain, failure, supervise

_TRIAL: Final = CallLimits(30.0, 30, Permissions())


def serve_calls(load: Callable[[], JailMain]) -> None:
    """Serve calls in jails until the caller closes the control socket, whose number is the last argument.

    The first line on standard output is JSON: null once calls are served, or why they cannot be. A call is a packet on
    the control socket: its `CallLimits` as JSON, and its own socket. `load` loads the code and returns what runs in
    each call's jail, or raises ConfigError.
    """
    # The caller's import path came this way; the code must not see it.
    os.environ.pop("PYTHONPATH", None)
    # Nothing that is loaded prints to the standard output that the caller reads.
    with os.fdopen(os.dup(1), "w") as ready:
        os.dup2(2, 1)
        try:
            main = load()
        except ConfigError as error:
            print(json.dumps(str(error)), file=ready)
            return
        # Supervisors are not waited for. Set after loading, which may have needed the default.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        interpreter_paths()
        # Frozen objects are not touched by collections, so their pages stay shared with all forks.
        gc.collect()
        gc.freeze()
        print("null", file=ready)
    control = socket.socket(fileno=int(sys.argv[-1]))
    while True:
        packet, handles, _, _ = socket.recv_fds(control, 1 << 16, 1)
        if not handles:
            return
        with socket.socket(fileno=handles[0]) as call:
            if os.fork() == 0:
                control.close()
                limits = json.loads(packet)
                supervise(call, CallLimits(**{**limits, "permissions": Permissions(**limits["permissions"])}), main)


def problem_with_jail() -> str | None:
    """Return why no jail can be made here; None if one can."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        supervise(theirs, _TRIAL, _enter_jail)
    theirs.close()
    with ours, ours.makefile("rb") as answer:
        outcome = json.loads(answer.read() or failure("lost", "the supervisor of a trial ended"))
    os.waitpid(child, 0)
    return outcome.get("message")


def _enter_jail(_: socket.socket) -> bytes:
    drop_privileges()
    return b"{}"
