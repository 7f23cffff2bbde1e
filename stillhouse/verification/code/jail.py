"""Namespaces without network, other processes and writable files, made without privileges. Linux 5.12 or later.

See namespaces(7), user_namespaces(7), capabilities(7) and mount_setattr(2).
"""

import ctypes
import os
import resource
import sys
from pathlib import Path
from typing import Final

_CLONE_NEWNS: Final = 0x00020000
_CLONE_NEWIPC: Final = 0x08000000
_CLONE_NEWUSER: Final = 0x10000000
_CLONE_NEWPID: Final = 0x20000000
_CLONE_NEWNET: Final = 0x40000000
_NAMESPACES: Final = _CLONE_NEWUSER | _CLONE_NEWNS | _CLONE_NEWPID | _CLONE_NEWNET | _CLONE_NEWIPC

_SYS_MOUNT_SETATTR: Final = 442
_AT_FDCWD: Final = -100
_AT_RECURSIVE: Final = 0x8000
_MOUNT_ATTR_RDONLY: Final = 1
_MS_PRIVATE: Final = 1 << 18
_MS_NOSUID_NODEV: Final = 2 | 4
_PR_SET_KEEPCAPS: Final = 8
_PR_SET_NO_NEW_PRIVS: Final = 38
_CAP_DAC_READ_SEARCH: Final = 1 << 2
_CAPABILITY_VERSION_3: Final = 0x20080522

_NOBODY: Final = 65534
_SCRATCH_BYTES: Final = 64 << 20
_SCRATCHES: Final = ("/tmp", "/var/tmp", "/dev/shm")
# Other processes, and sockets of services that a read-only file system does not keep from being connected to.
_HIDDEN: Final = ("/proc", "/run", "/dev/shm")

_LIBC = ctypes.CDLL(None, use_errno=True)


class NoJail(Exception):
    """The kernel does not give the namespaces; the message says which step it refused."""


class _MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


class _CapabilityHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _Capabilities(ctypes.Structure):
    # The lower 32 of each set, then the upper ones.
    _fields_ = [
        (name, ctypes.c_uint32)
        for name in ("effective", "permitted", "inheritable", "upper_effective", "upper_permitted", "upper_inheritable")
    ]


def enter_jail() -> None:
    """Moves this process, which must have one thread, into namespaces of its own and into an empty folder in memory.

    Its process namespace begins with the next child. The process keeps the power over its namespaces until
    `give_up_power`.

    Raises:
        NoJail: it cannot be done here.
    """
    if sys.platform != "linux":
        raise NoJail(f"needs Linux, this is {sys.platform}")
    _unshare()
    _make_read_only()
    scratch = _scratch()
    for folder in {*_HIDDEN, scratch}:
        if Path(folder).is_dir():
            options = f"size={_SCRATCH_BYTES},mode=777".encode()
            _check(
                f"mount(2) over {folder}",
                _LIBC.mount(b"tmpfs", folder.encode(), b"tmpfs", ctypes.c_ulong(_MS_NOSUID_NODEV), options),
            )
    os.chdir(scratch)


def give_up_power(max_processes: int) -> None:
    """Limits the number of processes, and drops the power over the namespaces for good, so that what is mounted stays.

    Raises:
        NoJail: the kernel refuses.
    """
    kept = 0
    if os.getuid() == 0:
        # The kernel never counts the processes of the machine's root, so this becomes nobody, who may still read what
        # root may: Python itself may lie in root's home.
        _check("prctl(PR_SET_KEEPCAPS)", _LIBC.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0))
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
        kept = _CAP_DAC_READ_SEARCH
    resource.setrlimit(resource.RLIMIT_NPROC, (max_processes, max_processes))
    _check("prctl(PR_SET_NO_NEW_PRIVS)", _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    capabilities = _Capabilities(effective=kept, permitted=kept)
    _check("capset(2)", _LIBC.capset(ctypes.byref(header), ctypes.byref(capabilities)))


def _unshare() -> None:
    """Leaves the namespaces of the machine. Who this process is in its new one, one that stayed behind has to say."""
    waiting, left = os.pipe()
    process = os.getpid()
    mapper = os.fork()
    if mapper == 0:
        problem = 1
        try:
            os.close(left)
            if os.read(waiting, 1):
                _map_users(process)
            problem = 0
        except OSError as error:
            problem = error.errno or 1
        finally:
            os._exit(problem)
    os.close(waiting)
    try:
        _check("unshare(2)", _LIBC.unshare(_NAMESPACES))
        os.write(left, b"x")
    finally:
        os.close(left)
        problem = os.waitstatus_to_exitcode(os.waitpid(mapper, 0)[1])
    if problem != 0:
        raise NoJail(f"the user namespace cannot be set up: {os.strerror(problem)}")


def _map_users(process: int) -> None:
    """Names the users of a process's new namespace: root, where this is root, and nobody; else this user as nobody."""
    proc = Path("/proc", str(process))
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        try:
            for kind in ("uid_map", "gid_map"):
                (proc / kind).write_text(f"0 0 1\n{_NOBODY} {_NOBODY} 1\n")
            return
        except OSError:
            # A container's root who is not the machine's, nor allowed to name others.
            pass
    (proc / "setgroups").write_text("deny")
    (proc / "uid_map").write_text(f"{_NOBODY} {user} 1")
    (proc / "gid_map").write_text(f"{_NOBODY} {group} 1")


def _make_read_only() -> None:
    attributes = _MountAttributes(attr_set=_MOUNT_ATTR_RDONLY, propagation=_MS_PRIVATE)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    _check(
        "mount_setattr(2)",
        _LIBC.syscall(
            ctypes.c_long(_SYS_MOUNT_SETATTR),
            ctypes.c_int(_AT_FDCWD),
            b"/",
            ctypes.c_uint(_AT_RECURSIVE),
            ctypes.byref(attributes),
            size,
        ),
    )


def _scratch() -> str:
    """A folder to cover that Python itself does not live in."""
    homes = {Path(sys.prefix), Path(sys.base_prefix)}
    for folder in _SCRATCHES:
        if Path(folder).is_dir() and not any(home.is_relative_to(folder) for home in homes):
            return folder
    raise NoJail(f"expected one of {', '.join(_SCRATCHES)} to be a folder without Python's own files in it")


def _check(step: str, result: int) -> None:
    if result != 0:
        raise NoJail(f"{step} failed: {os.strerror(ctypes.get_errno())}")
