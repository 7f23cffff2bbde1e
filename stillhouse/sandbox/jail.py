"""Namespaces with a file system of their own, made without privileges. Linux 5.12 or later.

See namespaces(7), user_namespaces(7), pid_namespaces(7) and pivot_root(2).
"""

import errno
import os
import resource
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, TypeVar

from stillhouse.sandbox import syscalls
from stillhouse.sandbox.syscalls import JailUnavailable

T = TypeVar("T")

MAX_PROCESSES: Final = 64
"""Simultaneous processes of a jail."""
SCRATCH: Final = "/tmp/scratch"
"""The only writable folder besides /tmp itself. It is in memory and gone with the jail."""

_SCRATCH_BYTES: Final = 128 << 20
_NEW_ROOT: Final = "/tmp"
_OLD_ROOT: Final = "/.old"
_SYSTEM: Final = (
    *("/bin", "/lib", "/lib32", "/lib64", "/usr/bin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/share/zoneinfo"),
    *("/nix/store", "/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime"),
)
_NETWORK: Final = (
    *("/etc/ca-certificates", "/etc/hosts", "/etc/nsswitch.conf", "/etc/pki", "/etc/resolv.conf", "/etc/ssl"),
    "/usr/share/ca-certificates",
)
_DEVICES: Final = ("/dev/full", "/dev/null", "/dev/random", "/dev/urandom", "/dev/zero")
_PACKAGES: Final = ("site-packages", "dist-packages")
_NOBODY: Final = 65534


@dataclass(frozen=True, slots=True)
class Permissions:
    """Access of a jail beyond the interpreter, its packages and a scratch folder."""

    network: bool = False
    """The network of this machine, including loopback and abstract Unix sockets."""
    files: Sequence[str] = ()
    """Absolute paths of readable files and folders."""


class JailEntry:
    """A handshake: made before the fork; the child enters the jail, and the parent outside maps its users."""

    def __init__(self) -> None:
        self._outside, self._inside = socket.socketpair()

    def map_users(self, process: int) -> None:
        """Map the users of the namespace that the child `process` enters, which only a process outside may do."""
        self._inside.close()
        with self._outside:
            if self._outside.recv(1):
                self._outside.send(str(_map_users(process)).encode())

    def enter(self, permissions: Permissions) -> None:
        """Move this process, which must have one thread, into namespaces and a file system of its own.

        Its process namespace begins with the next child. It stays privileged in the namespaces until `drop_privileges`.
        Raises JailUnavailable if the kernel refuses.
        """
        self._outside.close()
        with self._inside:
            flags = syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS | syscalls.CLONE_NEWPID | syscalls.CLONE_NEWIPC
            syscalls.unshare(flags if permissions.network else flags | syscalls.CLONE_NEWNET)
            self._inside.send(b"x")
            problem = int(self._inside.recv(16) or errno.EPIPE)
        if problem != 0:
            raise JailUnavailable(f"the user namespace cannot be set up: {os.strerror(problem)}. {syscalls.REMEDY}")
        _change_root(permissions)


def _change_root(permissions: Permissions) -> None:
    """Give this process, privileged in a mount namespace of its own, the file system of a jail."""
    named = [*permissions.files, *(_NETWORK if permissions.network else ())]
    shown: list[tuple[str, str]] = []
    for path, target in sorted({*interpreter_paths(), *_with_targets(named)}):
        # What lies in another path is shown with it.
        if not any(path == outer or path.startswith(f"{outer}/") for outer, _ in shown):
            shown.append((path, target))
    # A run's umask keeps files private; in the jail another user must reach the interpreter.
    os.umask(0o022)
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount("tmpfs", _NEW_ROOT, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "size=1m,mode=755")
    os.mkdir(_NEW_ROOT + _OLD_ROOT)
    syscalls.pivot_root(_NEW_ROOT, _NEW_ROOT + _OLD_ROOT)
    os.chdir("/")
    os.mkdir("/tmp")
    # Empty, so that processes cannot be inspected.
    os.mkdir("/proc")
    syscalls.mount("tmpfs", "/tmp", "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, f"size={_SCRATCH_BYTES},mode=1777")
    for path, target in shown:
        source = _OLD_ROOT + target
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.isdir(source):
            os.makedirs(path, exist_ok=True)
        else:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
        syscalls.mount(source, path, None, syscalls.MS_BIND | syscalls.MS_REC)
    os.mkdir(SCRATCH)
    os.chmod(SCRATCH, 0o1777)
    # POSIX semaphores and shared memory live there.
    os.symlink("/tmp", "/dev/shm")
    syscalls.detach(_OLD_ROOT)
    os.rmdir(_OLD_ROOT)
    syscalls.set_writable("/", writable=False)
    syscalls.set_writable("/tmp", writable=True)
    os.chdir(SCRATCH)


@cache
def interpreter_paths() -> tuple[tuple[str, str], ...]:
    """Return the pairs of path and link target that every jail shows: the system's programs and libraries, Python."""
    trees = [path for path in sys.path if Path(path).name in _PACKAGES]
    for prefix in (sys.prefix, sys.base_prefix):
        if prefix != "/usr":
            trees += [f"{prefix}/{part}" for part in ("bin", "lib", "lib64", "pyvenv.cfg")]
    return tuple(_with_targets([*_SYSTEM, *_DEVICES, *trees]))


def restrict_import_path() -> None:
    """Remove from `sys.path` what no jail shows, since the scratch folder may stand in its place."""
    trees = tuple(path for path, _ in interpreter_paths())
    sys.path[:] = [path for path in sys.path if any(path == tree or path.startswith(f"{tree}/") for tree in trees)]


def _with_targets(paths: Iterable[str]) -> list[tuple[str, str]]:
    targets = {path: os.path.realpath(path) for path in paths if os.path.exists(path)}
    return [*targets.items(), *((target, target) for target in targets.values())]


def drop_privileges() -> None:
    """Drop all privileges in the namespaces for good, limit the processes, and enter the scratch folder.

    Raises JailUnavailable if the kernel refuses, or the interpreter's files cannot be read without privileges.
    """
    if os.getuid() == 0:
        # RLIMIT_NPROC never binds the machine's root.
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    resource.setrlimit(resource.RLIMIT_NPROC, (MAX_PROCESSES, MAX_PROCESSES))
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.drop_capabilities()
    if not os.access(os.__file__, os.R_OK):
        raise JailUnavailable(
            f"{os.__file__} can be read by its owner alone; make Python's files readable: chmod -R o+rX"
        )
    os.chdir(SCRATCH)
    os.environ["HOME"] = tempfile.tempdir = SCRATCH


def run_child(run: Callable[[], T], finish: Callable[[T], int]) -> int:
    """Run untrusted code in a child of the jail's first process, and reap the jail's orphans meanwhile.

    `run` calls the code; processes that the code forks return from it as well. `finish`, called in the child alone,
    turns the result into the child's exit code, which is returned, or a signal's number below 0.
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
    """Map root and nobody if root may do so; else this user alone, as nobody. Return an errno, or 0."""
    proc = Path("/proc", str(process))
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        # A container's root may be neither the machine's nor allowed to map others.
        with suppress(OSError):
            for kind in ("uid_map", "gid_map"):
                (proc / kind).write_text(f"0 0 1\n{_NOBODY} {_NOBODY} 1\n")
            return 0
    try:
        (proc / "setgroups").write_text("deny")
        (proc / "uid_map").write_text(f"{_NOBODY} {user} 1")
        (proc / "gid_map").write_text(f"{_NOBODY} {group} 1")
    except OSError as error:
        return error.errno or errno.EPERM
    return 0
