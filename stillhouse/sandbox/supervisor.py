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
    adopt_orphans,
    descendants,
    die_with,
    kill_descendants,
    limit_this_process,
    num_threads,
)
from stillhouse.sandbox.syscalls import JailUnavailable

_POLL_INTERVAL_S: Final = 0.02
_LEAVE_S: Final = 5.0
# The anchor, the jail's first process, and the one that starts answers.
_OWN_PROCESSES: Final = 3
# How shells tell a signal apart from an exit code.
_SIGNALLED: Final = 128

FailureKind = Literal["exception", "timeout", "killed", "no_jail", "lost"]
"""`killed`: it crashed or reached a limit; `no_jail`: nothing was run, since the kernel grants no jail; `lost`: the
sandbox itself failed."""

JailMain = Callable[[socket.socket], bytes]
"""What the first process of a jail does: reads a request and gives the answer.

It begins with power over the jail and gives that up. What it leaves running ends with it.
"""


@dataclass(frozen=True, slots=True)
class CallLimits:
    """What one call may use, fixed before its first process exists."""

    timeout_s: float
    """Wall time of the call."""
    max_cpu_s: int
    """Processor time of each of its processes."""
    permissions: Permissions


def supervise(call: socket.socket, limits: CallLimits, work: JailMain) -> NoReturn:
    """Runs `work` in a jail, sends what it gives, or `kind` and `message` of a failure as JSON, and ends the process.

    Args:
        call: carries the request, which only the jail's first process reads, and the answer. Closed by the caller, it
            ends the call.
        limits: what the call may use.
        work: runs in the jail's first process.
    """
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # Apart from the server's group: it outlives a killed server until its worker is gone.
        os.setsid()
        adopt_orphans()
        num_before = num_threads()
        results, result = os.pipe()
        entry = JailEntry()
        anchor = os.fork()
        if anchor == 0:
            _anchor(call, result, limits, work, entry)
        os.close(result)
        ended = os.pidfd_open(anchor)
        try:
            entry.hold(anchor)
            answer = _watch(call, results, ended, limits, num_before)
        finally:
            # First, since all of the jail ends with it; one by one, a fork bomb's processes could not be caught.
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(ended, signal.SIGKILL)
            kill_descendants()
        _send(call, answer)
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        # Never back into the server's loop, and past what its file registered for the end of the process.
        os._exit(status)


def _send(call: socket.socket, answer: bytes) -> None:
    # The caller may have gone meanwhile.
    with suppress(OSError):
        call.sendall(answer)
        call.shutdown(socket.SHUT_WR)
        # A request that nobody read would reach the caller as a broken connection instead of the answer.
        call.settimeout(_LEAVE_S)
        while call.recv(1 << 20):
            pass


def _watch(call: socket.socket, results: int, ended: int, limits: CallLimits, num_before: int) -> bytes:
    deadline = time.monotonic() + limits.timeout_s
    watched = select.poll()
    watched.register(results, select.POLLIN)
    watched.register(ended, select.POLLIN)
    # Not what can be read: the request is for the jail's first process.
    watched.register(call.fileno(), select.POLLRDHUP)
    got = bytearray()
    is_open = True
    while True:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return failure("timeout", f"did not return within {limits.timeout_s:g} s")
        ready = {handle for handle, _ in watched.poll(1000 * min(left_s, _POLL_INTERVAL_S))}
        if call.fileno() in ready:
            return b""
        if is_open and results in ready:
            part = os.read(results, 1 << 20)
            got += part
            if not part:
                is_open = False
                watched.unregister(results)
        elif ready:
            status = os.waitid(os.P_PIDFD, ended, os.WEXITED)
            return _end(bytes(got), 0 if status is None else status.si_status, limits.max_cpu_s)
        if len(got) > MAX_RESULT_BYTES:
            return failure("killed", f"returned more than {MAX_RESULT_BYTES} bytes")
        # The kernel's own limit does not bind a root who cannot become another user.
        most = MAX_PROCESSES + _OWN_PROCESSES
        if num_threads() > num_before + most and len(descendants(os.getpid())) > most:
            return failure("killed", f"started more than {MAX_PROCESSES} processes")


def _anchor(call: socket.socket, result: int, limits: CallLimits, work: JailMain, entry: JailEntry) -> NoReturn:
    """Makes the jail and waits for its first process, which dies with this one."""
    status = 1
    try:
        supervisor = os.getppid()
        limit_this_process(limits.max_cpu_s)
        entry.enter(limits.permissions)
        # Entering clears it, so not before.
        die_with(supervisor)
        close_other_files(call.fileno(), result)
        first = os.fork()
        if first == 0:
            _work(call, result, work)
        os.close(result)
        status = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
    except JailUnavailable as error:
        os.write(result, failure("no_jail", str(error)))
        status = 0
    finally:
        os._exit(status if status >= 0 else _SIGNALLED - status)


def _work(call: socket.socket, result: int, work: JailMain) -> NoReturn:
    status = 1
    try:
        # Outside of this namespace, the parent has no number.
        die_with(0)
        try:
            answer = work(call)
        except JailUnavailable as error:
            answer = failure("no_jail", str(error))
        with os.fdopen(result, "wb") as file:
            file.write(answer)
        status = 0
    finally:
        # Threads that the code left behind are not waited for.
        os._exit(status)


def close_other_files(*kept: int) -> None:
    """Closes every file but these, and makes the standard streams read and write nothing."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    first = 3
    for number in sorted(kept):
        os.closerange(first, number)
        first = number + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def _end(got: bytes, code: int, max_cpu_s: int) -> bytes:
    if code == 0 and got:
        return got
    return failure("killed", describe_exit(code if code <= _SIGNALLED else _SIGNALLED - code, max_cpu_s))


def describe_exit(code: int, max_cpu_s: int) -> str:
    """Says of a process that gave no answer what became of it, as the end of a sentence.

    Args:
        code: its exit code, or a signal's number below 0.
        max_cpu_s: the processor time that it had.
    """
    if code == -signal.SIGXCPU:
        return f"used more than {max_cpu_s} s of processor time"
    if code < 0:
        return f"was killed by {_name_of_signal(-code)}"
    return f"ended its process with code {code} before it returned"


def _name_of_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def failure(kind: FailureKind, message: str) -> bytes:
    """The answer of a call that failed."""
    return json.dumps({"kind": kind, "message": message}).encode()
