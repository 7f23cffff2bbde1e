"""The caller's side of a fork server."""

import json
import select
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from stillhouse.processes.guarded_process import GuardedProcess, start_isolated
from stillhouse.sandbox.supervisor import CallLimits, FailureKind

ANSWER_GRACE_S: Final = 15.0
"""Seconds beyond a call's time limit that its supervisor has to answer."""

_LOAD_TIMEOUT_S: Final = 60.0


class JailFailed(Exception):
    """A call gave no result; the message says why, as the end of a sentence about the code."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind


class ServerUnavailable(Exception):
    """A server cannot serve calls; the message says why."""


class SandboxServer:
    """A process that serves calls, each over a socket of its own; it starts with the first, and anew once it has ended.

    `module` calls `serve_calls`, or follows its protocol without jails; the number of the control socket follows its
    arguments. `environment` comes on top of PATH and LANG.
    """

    def __init__(self, module: str, args: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = module, args, environment
        self._lock = threading.RLock()
        self._control: socket.socket
        self.process: GuardedProcess | None = None
        """None until it starts, and once it is known to have ended."""

    def start(self) -> None:
        """Start the process unless it runs; raise ServerUnavailable if that fails, or it says why it cannot serve."""
        with self._lock:
            if self.process is not None and self.process.poll() is None:
                return
            self.close()
            control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                process = start_isolated(*self._command, theirs)
            except OSError as error:
                control.close()
                raise ServerUnavailable(f"its process cannot be started: {error}") from error
            self._control, self.process = control, process
            try:
                ready, _, _ = select.select([process.lines], [], [], _LOAD_TIMEOUT_S)
                line = process.lines.readline() if ready else ""
                if not line:
                    how = "ended" if ready else f"is still loading after {_LOAD_TIMEOUT_S:g} s"
                    raise ServerUnavailable(f"its process {how}")
                problem = json.loads(line)
                if problem is not None:
                    raise ServerUnavailable(problem)
            except BaseException:
                self.close()
                raise

    def open_call(self, limits: CallLimits | None = None) -> socket.socket:
        """Return the socket of a new call, which takes the request, and gives the answer until its end.

        `limits` are None for a server without jails. Raises JailFailed if the server has ended, or as `start`.
        """
        ours, theirs = socket.socketpair()
        try:
            with self._lock, theirs:
                self.start()
                packet = json.dumps(None if limits is None else asdict(limits)).encode()
                try:
                    socket.send_fds(self._control, [packet], [theirs.fileno()])
                except OSError as error:
                    # A process closes its sockets some time before poll() sees its end.
                    self.close()
                    raise JailFailed("lost", "could not start: its server ended") from error
        except BaseException:
            ours.close()
            raise
        return ours

    def close(self) -> None:
        """End the server and all running calls; a later call starts another."""
        with self._lock:
            process, self.process = self.process, None
            if process is not None:
                self._control.close()
                process.stop()


def exchange(call: socket.socket, request: bytes, timeout_s: float) -> Any:
    """Return the decoded answer to a request, for callers without an event loop.

    Raises JailFailed if none came within `timeout_s` seconds, or as `read_answer`.
    """
    call.settimeout(timeout_s)
    try:
        call.sendall(request)
        # The supervisor sends all of its answer at once.
        with call.makefile("rb") as answer:
            return read_answer(answer.read())
    except TimeoutError as error:
        raise JailFailed("lost", f"gave no sign of life for {timeout_s:g} s") from error
    except OSError:
        return read_answer(b"")


def read_answer(answer: bytes) -> Any:
    """Return the decoded answer; raise JailFailed if it is missing, or reports a failure."""
    if not answer:
        raise JailFailed("lost", "lost its supervisor")
    decoded = json.loads(answer)
    if "kind" in decoded:
        raise JailFailed(decoded["kind"], decoded["message"])
    return decoded
