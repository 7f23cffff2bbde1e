"""Namespaces with a file system of their own, made without privileges. Linux 5.12 or later.

See namespaces(7), user_namespaces(7), pid_namespaces(7) and pivot_root(2).
"""

import errno
import os
import resource
import signal
import socket
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from stillhouse.sandbox.limits import MAX_PROCESSES
from stillhouse.sandbox.root import SCRATCH, change_root
from stillhouse.sandbox.syscalls import (
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    PR_SET_NO_NEW_PRIVS,
    REMEDY,
    JailUnavailable,
    drop_capabilities,
    prctl,
    unshare,
)

T = TypeVar("T")

_NOBODY: Final = 65534


@dataclass(frozen=True, slots=True)
class Permissions:
    """What a jail may access beyond the interpreter, its packages and a scratch folder."""

    network: bool = False
    """The network of this machine, including loopback and abstract Unix sockets."""
    files: Sequence[str] = ()
    """Absolute paths of readable files and folders."""


class JailEntry:
    """A handshake: made before the fork; the child enters the jail, and the parent outside maps its users."""

    def __init__(self) -> None:
        self._outside, self._inside = socket.socketpair()

    def map_users(self, process: int) -> None:
        """Maps the users of the namespace that the child `process` enters, which only a process outside may do."""
        self._inside.close()
        with self._outside:
            if self._outside.recv(1):
                self._outside.send(str(_map_users(process)).encode())

    def enter(self, permissions: Permissions) -> None:
        """Moves this process, which must have one thread, into namespaces and a file system of its own.

        Its process namespace begins with the next child. It stays privileged in the namespaces until `drop_privileges`.

        Raises:
            JailUnavailable: the kernel refuses.
        """
        self._outside.close()
        with self._inside:
            flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC
            unshare(flags if permissions.network else flags | CLONE_NEWNET)
            self._inside.send(b"x")
            problem = int(self._inside.recv(16) or errno.EPIPE)
        if problem != 0:
            raise JailUnavailable(f"the user namespace cannot be set up: {os.strerror(problem)}. {REMEDY}")
        change_root(permissions.files, network=permissions.network)


def drop_privileges() -> None:
    """Drops all privileges in the namespaces for good, limits the number of processes, and enters the scratch folder.

    Raises:
        JailUnavailable: the kernel refuses, or the interpreter's files cannot be read without privileges.
    """
    if os.getuid() == 0:
        # RLIMIT_NPROC never binds the machine's root.
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    resource.setrlimit(resource.RLIMIT_NPROC, (MAX_PROCESSES, MAX_PROCESSES))
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    drop_capabilities()
    if not os.access(os.__file__, os.R_OK):
        raise JailUnavailable(
            f"{os.__file__} can be read by its owner alone; make Python's files readable: chmod -R o+rX"
        )
    os.chdir(SCRATCH)
    os.environ["HOME"] = tempfile.tempdir = SCRATCH


def run_child(run: Callable[[], T], finish: Callable[[T], int]) -> int:
    """Runs untrusted code in a child of the jail's first process, whose orphans are reaped meanwhile.

    Args:
        run: calls the code. Processes that the code forks return from it as well.
        finish: turns the result into the child's exit code; called in the child alone.

    Returns:
        The child's exit code, or a signal's number below 0.
    """
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            pid = os.getpid()
            result = run()
            if os.getpid() == pid:
                status = finish(result)
        finally:
            # Past whatever the code registered for the end of the process, and without waiting for its threads.
            os._exit(status)
    while True:
        pid, status = os.wait()
        if pid == child:
            return os.waitstatus_to_exitcode(status)


def _map_users(process: int) -> int:
    """Maps root and nobody if root may do so; else this user alone, as nobody. Returns an errno, or 0."""
    proc = Path("/proc", str(process))
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        try:
            for kind in ("uid_map", "gid_map"):
                (proc / kind).write_text(f"0 0 1\n{_NOBODY} {_NOBODY} 1\n")
            return 0
        except OSError:
            # A container's root who is not the machine's, nor allowed to map others.
            pass
    try:
        (proc / "setgroups").write_text("deny")
        (proc / "uid_map").write_text(f"{_NOBODY} {user} 1")
        (proc / "gid_map").write_text(f"{_NOBODY} {group} 1")
    except OSError as error:
        return error.errno or errno.EPERM
    return 0
