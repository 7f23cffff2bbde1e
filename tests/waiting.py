"""Waiting for what other processes do."""

import time
from collections.abc import Callable

import psutil


def until(condition: Callable[[], bool], timeout_s: float = 60.0) -> bool:
    """Return whether a condition came to hold within the time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that ended and was not yet waited for does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def arguments(process: psutil.Process) -> list[str]:
    """Return the command line of a process; none of one that ended, even if nobody waited for it yet."""
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


def are_gone(*pids: int) -> bool:
    """Return whether processes ended within a minute."""
    return until(lambda: not any(map(is_alive, pids)))
