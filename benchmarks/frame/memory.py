"""What memory this process holds, and has held at most."""

import re
from pathlib import Path


def status_bytes(name: str) -> int:
    """A figure of `/proc/self/status`: `VmRSS` is held now, `VmHWM` was held at most.

    `resource.getrusage` is no help: a process is born with the peak of the one that started it.

    Raises:
        RuntimeError: there is none, as on systems other than Linux.
    """
    match = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if match is None:
        raise RuntimeError(f"/proc/self/status has no {name}; peak memory can only be measured on Linux")
    return int(match[1]) * 1024
