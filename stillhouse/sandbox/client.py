"""The caller's side of a fork server."""

import json
import select
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from stillhouse.processes.guarded_process import start_isolated
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
    """A process that serves calls, each over a socket of its own, from when this returns until `close`.

    `module` calls `serve_calls`, or follows its protocol without jails; the number of the control socket follows its
    arguments. `environment` comes on top of PATH and LANG. Raises ServerUnavailable if the process does not start, or
    reports why it cannot serve.
    """

    def __init__(self, module: str, args: Sequence[str], environment: Mapping[str, str]) -> None:
        self._has_ended = False
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._process = start_isolated(module, args, environment, theirs)
        except OSError as error:
            self._control.close()
            raise ServerUnavailable(f"its process cannot be started: {error}") from error
        try:
            ready, _, _ = select.select([self._process.lines], [], [], _LOAD_TIMEOUT_S)
            line = self._process.lines.readline() if ready else ""
            if not line:
                how = "ended" if ready else f"is still loading after {_LOAD_TIMEOUT_S:g} s"
                raise ServerUnavailable(f"its process {how}")
            problem = json.loads(line)
            if problem is not None:
                raise ServerUnavailable(problem)
        except BaseException:
            self.close()
            raise

    @property
    def is_running(self) -> bool:
        """Return True until the process is known to have ended."""
        return not self._has_ended and self._process.poll() is None

    def open_call(self, limits: CallLimits | None = None) -> socket.socket:
        """Return the socket of a new call, which takes the request, and gives the answer until its end.

        `limits` are None for a server without jails. Raises JailFailed if the server has ended.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                packet = json.dumps(None if limits is None else asdict(limits)).encode()
                socket.send_fds(self._control, [packet], [theirs.fileno()])
            except OSError as error:
                ours.close()
                # A process closes its sockets some time before poll() sees its end.
                self._has_ended = True
                raise JailFailed("lost", "could not start: its server ended") from error
        return ours

    def close(self) -> None:
        """End the server and all running calls."""
        self._control.close()
        self._process.stop()


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
