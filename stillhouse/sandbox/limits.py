"""What one call may use, and how its processes are found."""

import os
import resource
import signal
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Final

from stillhouse.sandbox.syscalls import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, prctl

MAX_MEMORY_BYTES: Final = 1 << 30
"""Address space of each of its processes beyond what the server takes."""
MAX_FILE_BYTES: Final = 100 * 1000 * 1000
"""Size of one file it writes."""
MAX_PROCESSES: Final = 64
"""Processes it has at once."""
MAX_RESULT_BYTES: Final = 10 * 1000 * 1000
"""Size of its result as JSON."""

_KILL_S: Final = 10.0


def limit_this_process(max_cpu_s: int) -> None:
    """Sets the limits that the kernel keeps; they pass on to every process this one starts."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for kind, most in (
        (resource.RLIMIT_AS, used + MAX_MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))
    # The soft limit's signal says what happened; at the hard one it would be a plain SIGKILL.
    resource.setrlimit(resource.RLIMIT_CPU, (max_cpu_s, max_cpu_s + 1))


def num_threads() -> int:
    """Threads of the whole machine: a cheap sign of whether a closer look is worth its cost."""
    return int(Path("/proc/loadavg").read_text().split()[3].split("/")[1])


def descendants(pid: int) -> list[int]:
    """The processes that `pid` started, directly or not, and that still run."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                # `pid (name) state parent ...`; the name may hold spaces and brackets.
                fields = Path("/proc", entry, "stat").read_bytes().rpartition(b")")[2].split()
                if fields[0] not in (b"Z", b"X"):
                    children[int(fields[1])].append(int(entry))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        started = children.get(waiting.pop(), [])
        found += started
        waiting += started
    return found


def adopt_orphans() -> None:
    """Makes this process the parent of whatever its descendants leave behind."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with(parent: int) -> None:
    """Has the kernel kill this process when its parent, a process of one thread, ends.

    Args:
        parent: number of the parent; 0 where it lies in an outer process namespace.
    """
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def kill_descendants() -> None:
    """Kills and reaps all that this process started, however it tried to get away, for at most ten seconds."""
    deadline = time.monotonic() + _KILL_S
    while _has_children() and time.monotonic() < deadline:
        for pid in descendants(os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)


def _has_children() -> bool:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True
