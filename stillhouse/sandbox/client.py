"""The caller's end of a sandbox server."""

import json
import os
import select
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from stillhouse.processes.guarded_process import GuardedProcess
from stillhouse.sandbox.supervisor import CallLimits, FailureKind

ANSWER_GRACE_S: Final = 15.0
"""Seconds beyond a call's own time in which its supervisor has to answer."""

_LOAD_TIMEOUT_S: Final = 60.0
_PASSED_ON: Final = ("PATH", "LANG")
_CHUNK: Final = 1 << 16


class JailFailed(Exception):
    """A call gave no result; the message says why, as the end of a sentence."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind


class ServerUnavailable(Exception):
    """A server does not serve calls; the message says why."""


class SandboxServer:
    """A process that serves calls in jails, from when this returns until `close`.

    Args:
        module: what to run: it makes an `ForkServer` and serves the control socket.
        args: its arguments; the number of the control socket comes after them.
        environment: the environment variables of the server and of what it runs, beside PATH and LANG.

    Raises:
        ServerUnavailable: it does not start, or says why it cannot serve.
    """

    def __init__(self, module: str, args: Sequence[str], environment: Mapping[str, str]) -> None:
        self._has_ended = False
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        variables = {
            **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
            **environment,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        number = theirs.fileno()
        try:
            with theirs:
                self._process = GuardedProcess(
                    module, [*args, str(number)], variables, inherit_env=False, pass_fds=[number]
                )
        except OSError as error:
            self._control.close()
            raise ServerUnavailable(f"its process cannot be started: {error}") from error
        try:
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    @property
    def is_running(self) -> bool:
        """Whether the process still lives, as far as is known."""
        return not self._has_ended and self._process.poll() is None

    def open_call(self, limits: CallLimits) -> socket.socket:
        """The socket of a new call: takes the request, and gives the answer and then its end.

        Raises:
            JailFailed: the server has ended.
        """
        packet = {
            "timeout_s": limits.timeout_s,
            "max_cpu_s": limits.max_cpu_s,
            "network": limits.permissions.network,
            "files": limits.permissions.files,
        }
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [json.dumps(packet).encode()], [theirs.fileno()])
            except OSError as error:
                ours.close()
                # A process that ends has closed its sockets some time before it counts as ended.
                self._has_ended = True
                raise JailFailed("lost", "could not start: its server ended") from error
        return ours

    def close(self) -> None:
        """Ends the server and every call that runs."""
        self._control.close()
        self._process.stop()

    def _wait_until_ready(self) -> None:
        ready, _, _ = select.select([self._process.lines], [], [], _LOAD_TIMEOUT_S)
        line = self._process.lines.readline() if ready else ""
        if not line:
            how = "ended" if ready else f"is still loading after {_LOAD_TIMEOUT_S:g} s"
            raise ServerUnavailable(f"its process {how}")
        problem = json.loads(line)
        if problem is not None:
            raise ServerUnavailable(problem)


def exchange(call: socket.socket, request: bytes, timeout_s: float) -> bytes:
    """Sends the request and gives the answer, for callers without an event loop.

    Raises:
        JailFailed: none came within `timeout_s` seconds, or the call was lost.
    """
    deadline = time.monotonic() + timeout_s
    answer = bytearray()
    try:
        call.settimeout(timeout_s)
        call.sendall(request)
        while True:
            call.settimeout(max(deadline - time.monotonic(), 1e-3))
            part = call.recv(_CHUNK)
            if not part:
                break
            answer += part
    except TimeoutError as error:
        raise JailFailed("lost", f"gave no sign of life for {timeout_s:g} s") from error
    except OSError:
        answer.clear()
    return bytes(answer)


def read_answer(answer: bytes) -> Any:
    """The answer, decoded.

    Raises:
        JailFailed: it is missing, or tells of a failure.
    """
    if not answer:
        raise JailFailed("lost", "lost its supervisor")
    found = json.loads(answer)
    if "kind" in found:
        raise JailFailed(found["kind"], found["message"])
    return found
