"""Limits of one call, and how its processes are found and killed."""

import os
import resource
import signal
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Final

from stillhouse.sandbox.syscalls import PR_SET_PDEATHSIG, prctl

MAX_MEMORY_BYTES: Final = 1 << 30
"""Address space of each process beyond that of the server."""
MAX_FILE_BYTES: Final = 100 * 1000 * 1000
"""Size of one written file."""
MAX_PROCESSES: Final = 64
"""Simultaneous processes."""
MAX_RESULT_BYTES: Final = 10 * 1000 * 1000
"""Size of the result as JSON."""

_KILL_TIMEOUT_S: Final = 10.0


def limit_this_process(max_cpu_s: int) -> None:
    """Sets the limits that the kernel enforces; every process this one starts inherits them."""
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
    """Threads of the whole machine: a cheap check before `descendants`."""
    return int(Path("/proc/loadavg").read_text().split()[3].split("/")[1])


def descendants(pid: int) -> list[int]:
    """The running processes that `pid` started, directly or not."""
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
    """Has the kernel kill this process when its parent, a process of one thread, ends.

    Args:
        parent: pid of the parent; 0 if it is in an outer process namespace.
    """
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def kill_descendants() -> None:
    """Kills and reaps all descendants, however they try to escape, for at most ten seconds."""
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
