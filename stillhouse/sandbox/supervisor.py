"""The process outside the jail that watches one call and leaves nothing behind."""

import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal, NoReturn

from stillhouse.sandbox.jail import JailEntry, Permissions
from stillhouse.sandbox.limits import (
    MAX_PROCESSES,
    MAX_RESULT_BYTES,
    descendants,
    die_with,
    kill_descendants,
    limit_this_process,
    num_threads,
)
from stillhouse.sandbox.syscalls import PR_SET_CHILD_SUBREAPER, JailUnavailable, prctl

_POLL_INTERVAL_S: Final = 0.02
_DRAIN_TIMEOUT_S: Final = 5.0
# The anchor, the jail's first process, and the one that starts answers.
_OWN_PROCESSES: Final = 3
# How shells tell a signal apart from an exit code.
_SIGNALLED: Final = 128

FailureKind = Literal["exception", "timeout", "killed", "no_jail", "lost"]
"""`killed`: crashed or reached a limit; `no_jail`: the kernel grants no jail, so nothing was run; `lost`: the sandbox
itself failed."""

JailMain = Callable[[socket.socket], bytes]
"""Main function of a jail's first process: reads a request and returns the answer.

It starts privileged and drops its privileges. Processes it leaves running end with it.
"""


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Limits of one call."""

    timeout_s: float
    """Wall time of the call."""
    max_cpu_s: int
    """Processor time of each of its processes."""
    permissions: Permissions


def supervise(call: socket.socket, limits: CallLimits, main: JailMain) -> NoReturn:
    """Runs `main` in a jail, sends its answer, or the `kind` and `message` of a failure as JSON, and exits.

    Only the jail's first process reads the request from `call`. The call ends when the caller closes it.
    """
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # Outside the server's group: it outlives a killed server until the jail is gone.
        os.setsid()
        # The jail's orphans become children of this process.
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        num_before = num_threads()
        result_reader, result_writer = os.pipe()
        entry = JailEntry()
        anchor = os.fork()
        if anchor == 0:
            _anchor(call, result_writer, limits, main, entry)
        os.close(result_writer)
        anchor_fd = os.pidfd_open(anchor)
        try:
            entry.map_users(anchor)
            answer = _watch(call, result_reader, anchor_fd, limits, num_before)
        finally:
            # The anchor first: all of the jail ends with it, while a fork bomb cannot be killed one by one.
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(anchor_fd, signal.SIGKILL)
            kill_descendants()
        _send(call, answer)
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        # Never return into the server's loop, nor run the exit functions of the user's file.
        os._exit(status)


def _send(call: socket.socket, answer: bytes) -> None:
    # The caller may have gone.
    with suppress(OSError):
        call.sendall(answer)
        call.shutdown(socket.SHUT_WR)
        # Closing with an unread request would reset the connection before the answer arrives.
        call.settimeout(_DRAIN_TIMEOUT_S)
        while call.recv(1 << 20):
            pass


def _watch(call: socket.socket, result_fd: int, anchor_fd: int, limits: CallLimits, num_before: int) -> bytes:
    deadline = time.monotonic() + limits.timeout_s
    poller = select.poll()
    poller.register(result_fd, select.POLLIN)
    poller.register(anchor_fd, select.POLLIN)
    # Not POLLIN: the request is for the jail's first process.
    poller.register(call.fileno(), select.POLLRDHUP)
    result = bytearray()
    is_open = True
    while True:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return failure("timeout", f"did not return within {limits.timeout_s:g} s")
        ready = {handle for handle, _ in poller.poll(1000 * min(left_s, _POLL_INTERVAL_S))}
        if call.fileno() in ready:
            return b""
        if is_open and result_fd in ready:
            chunk = os.read(result_fd, 1 << 20)
            result += chunk
            if not chunk:
                is_open = False
                poller.unregister(result_fd)
        elif ready:
            ended = os.waitid(os.P_PIDFD, anchor_fd, os.WEXITED)
            code = 0 if ended is None else ended.si_status
            if code == 0 and result:
                return bytes(result)
            code = code if code <= _SIGNALLED else _SIGNALLED - code
            return failure("killed", describe_exit(code, limits.max_cpu_s))
        if len(result) > MAX_RESULT_BYTES:
            return failure("killed", f"returned more than {MAX_RESULT_BYTES} bytes")
        # RLIMIT_NPROC does not bind a root that cannot become another user.
        max_processes = MAX_PROCESSES + _OWN_PROCESSES
        if num_threads() > num_before + max_processes and len(descendants(os.getpid())) > max_processes:
            return failure("killed", f"started more than {MAX_PROCESSES} processes")


def _anchor(call: socket.socket, result: int, limits: CallLimits, main: JailMain, entry: JailEntry) -> NoReturn:
    """Makes the jail and waits for its first process, which dies with this one."""
    status = 1
    try:
        supervisor = os.getppid()
        limit_this_process(limits.max_cpu_s)
        entry.enter(limits.permissions)
        # After entering, which clears the setting.
        die_with(supervisor)
        close_other_files(call.fileno(), result)
        first = os.fork()
        if first == 0:
            _run_main(call, result, main)
        os.close(result)
        status = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
    except JailUnavailable as error:
        os.write(result, failure("no_jail", str(error)))
        status = 0
    finally:
        os._exit(status if status >= 0 else _SIGNALLED - status)


def _run_main(call: socket.socket, result: int, main: JailMain) -> NoReturn:
    status = 1
    try:
        # The parent has no pid in this namespace.
        die_with(0)
        try:
            answer = main(call)
        except JailUnavailable as error:
            answer = failure("no_jail", str(error))
        with os.fdopen(result, "wb") as file:
            file.write(answer)
        status = 0
    finally:
        # Without waiting for threads that the code left behind.
        os._exit(status)


def close_other_files(*kept: int) -> None:
    """Closes every file but these, and connects the standard streams to /dev/null."""
    devnull = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(devnull, stream)
    first = 3
    for number in sorted(kept):
        os.closerange(first, number)
        first = number + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def describe_exit(code: int, max_cpu_s: int) -> str:
    """How a process without an answer ended, as the end of a sentence; `code` is a signal's number below 0."""
    if code == -signal.SIGXCPU:
        return f"used more than {max_cpu_s} s of processor time"
    if code < 0:
        name = signal.Signals(-code).name if -code in list(signal.Signals) else f"signal {-code}"
        return f"was killed by {name}"
    return f"ended its process with code {code} before it returned"


def failure(kind: FailureKind, message: str) -> bytes:
    """The answer of a call that failed."""
    return json.dumps({"kind": kind, "message": message}).encode()
