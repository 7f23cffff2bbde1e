"""The system calls of a jail that Python's `os` lacks (3.11): namespaces, mounts and capabilities.

See unshare(2), setns(2), mount(2), mount_setattr(2), pivot_root(2), prctl(2) and capset(2). Each function raises
JailUnavailable if the kernel refuses.
"""

import ctypes
import os
from typing import Final

CLONE_NEWNS: Final = 0x00020000
CLONE_NEWIPC: Final = 0x08000000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWPID: Final = 0x20000000
CLONE_NEWNET: Final = 0x40000000

MS_NOSUID: Final = 0x2
MS_NODEV: Final = 0x4
MS_BIND: Final = 0x1000
MS_REC: Final = 0x4000
MS_PRIVATE: Final = 1 << 18

PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
PR_SET_NO_NEW_PRIVS: Final = 38

# The number of mount_setattr is the same on every architecture.
_SYS_PIVOT_ROOT: Final = {"x86_64": 155, "aarch64": 41, "riscv64": 41}
_SYS_MOUNT_SETATTR: Final = 442
_AT_FDCWD: Final = -100
_AT_RECURSIVE: Final = 0x8000
_MOUNT_ATTR_RDONLY: Final = 1
_MOUNT_ATTR_NOSUID: Final = 2
_MNT_DETACH: Final = 2
_CAPABILITY_VERSION_3: Final = 0x20080522

REMEDY: Final = (
    "The sandbox needs unprivileged user namespaces: allow them (sysctl user.max_user_namespaces, "
    "kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0), and in a container by a "
    "seccomp and AppArmor profile that permits unshare, mount and pivot_root"
)

_LIBC = ctypes.CDLL(None, use_errno=True)


class JailUnavailable(Exception):
    """The kernel refuses a jail; the message names the step and the remedy."""


class _MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


class _CapabilityHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


def unshare(flags: int) -> None:
    _check("unshare(2)", _LIBC.unshare(flags))


def return_to_own_processes() -> None:
    """Have children after `unshare(CLONE_NEWPID)` and a fork stay in this namespace."""
    this = os.pidfd_open(os.getpid())
    try:
        _check("setns(2)", _LIBC.setns(this, CLONE_NEWPID))
    finally:
        os.close(this)


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    result = _LIBC.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3])
    _check(f"mount(2) on {target}", result)


def set_writable(path: str, *, writable: bool) -> None:
    """Make the mount at `path` writable; or it and all mounts below it read-only and nosuid."""
    if writable:
        flags, attributes = 0, _MountAttributes(attr_clr=_MOUNT_ATTR_RDONLY)
    else:
        flags, attributes = _AT_RECURSIVE, _MountAttributes(attr_set=_MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID)
    result = _LIBC.syscall(
        *(ctypes.c_long(_SYS_MOUNT_SETATTR), ctypes.c_int(_AT_FDCWD), os.fsencode(path), ctypes.c_uint(flags)),
        *(ctypes.byref(attributes), ctypes.c_size_t(ctypes.sizeof(attributes))),
    )
    _check(f"mount_setattr(2) on {path}", result)


def pivot_root(new_root: str, put_old: str) -> None:
    """Make the mount `new_root` the root of this process."""
    machine = os.uname().machine
    if machine not in _SYS_PIVOT_ROOT:
        raise JailUnavailable(f"expected one of the machines {', '.join(_SYS_PIVOT_ROOT)}; this is {machine}")
    number = ctypes.c_long(_SYS_PIVOT_ROOT[machine])
    result = _LIBC.syscall(number, os.fsencode(new_root), os.fsencode(put_old))
    _check("pivot_root(2)", result)


def detach(path: str) -> None:
    """Unmount what is mounted at the path and all below it."""
    _check(f"umount2(2) of {path}", _LIBC.umount2(os.fsencode(path), _MNT_DETACH))


def prctl(option: int, value: int) -> None:
    _check(f"prctl({option})", _LIBC.prctl(option, value, 0, 0, 0))


def drop_capabilities() -> None:
    """Empty every capability set of this process."""
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    # Effective, permitted and inheritable; the lower 32 of each, then the upper ones.
    none = (ctypes.c_uint32 * 6)()
    _check("capset(2)", _LIBC.capset(ctypes.byref(header), ctypes.byref(none)))


def _check(step: str, result: int) -> None:
    if result != 0:
        raise JailUnavailable(f"{step} failed: {os.strerror(ctypes.get_errno())}. {REMEDY}")
