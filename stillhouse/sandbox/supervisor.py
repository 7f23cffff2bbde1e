"""The process outside the jail that watches one call and leaves nothing behind."""

import json
import os
import resource
import select
import signal
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NoReturn

from stillhouse.sandbox.jail import MAX_PROCESSES, JailEntry, Permissions
from stillhouse.sandbox.syscalls import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, JailUnavailable, prctl

MAX_MEMORY_BYTES: Final = 1 << 30
"""Address space of each process beyond the server's own."""
MAX_FILE_BYTES: Final = 100 * 1000 * 1000
"""Size of one written file."""
MAX_RESULT_BYTES: Final = 10 * 1000 * 1000
"""Size of the result as JSON."""

_KILL_TIMEOUT_S: Final = 10.0
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
    timeout_s: float
    """Wall time of the call."""
    max_cpu_s: int
    """Processor time of each of its processes."""
    permissions: Permissions


def supervise(call: socket.socket, limits: CallLimits, main: JailMain) -> NoReturn:
    """Run `main` in a jail, send its answer, or the `kind` and `message` of a failure as JSON, and exit.

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
    """Make the jail and wait for its first process, which dies with this one."""
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
    """Close every file but these, and connect the standard streams to /dev/null."""
    devnull = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(devnull, stream)
    first = 3
    for number in sorted(kept):
        os.closerange(first, number)
        first = number + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def describe_exit(code: int, max_cpu_s: int) -> str:
    """Return how a process without an answer ended, as the end of a sentence; `code` is a signal's number below 0."""
    if code == -signal.SIGXCPU:
        return f"used more than {max_cpu_s} s of processor time"
    if code < 0:
        name = signal.Signals(-code).name if -code in list(signal.Signals) else f"signal {-code}"
        return f"was killed by {name}"
    return f"ended its process with code {code} before it returned"


def failure(kind: FailureKind, message: str) -> bytes:
    return json.dumps({"kind": kind, "message": message}).encode()


def limit_this_process(max_cpu_s: int) -> None:
    """Set the limits that the kernel enforces; every process this one starts inherits them."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for kind, limit in (
        (resource.RLIMIT_AS, used + MAX_MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, limit))
    # The soft limit sends SIGXCPU, which names the cause; the hard one a plain SIGKILL.
    resource.setrlimit(resource.RLIMIT_CPU, (max_cpu_s, max_cpu_s + 1))


def num_threads() -> int:
    """Return the number of threads of the machine: a cheap check before `descendants`."""
    return int(Path("/proc/loadavg").read_text().split()[3].split("/")[1])


def descendants(pid: int) -> list[int]:
    """Return the running processes that `pid` started, directly or not."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                # `pid (name) state parent ...`; the name may hold spaces and brackets.
                fields = Path("/proc", entry, "stat").read_bytes().rpartition(b")")[2].split()
                if fields[0] not in (b"Z", b"X"):
                    children[int(fields[1])].append(int(entry))
    running: list[int] = []
    queue = [pid]
    while queue:
        started = children.get(queue.pop(), [])
        running += started
        queue += started
    return running


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent, a process of one thread, ends.

    `parent` is 0 if it is in an outer process namespace.
    """
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def kill_descendants() -> None:
    """Kill and reap all descendants, however they try to escape, for at most ten seconds."""
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for pid in descendants(os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)
