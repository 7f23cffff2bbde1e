"""The file system of a jail: the interpreter and its packages, read-only, and a scratch folder in memory."""

import os
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final

from stillhouse.sandbox.syscalls import (
    MS_BIND,
    MS_NODEV,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
    detach,
    make_read_only,
    make_writable,
    mount,
    pivot_root,
)

SCRATCH: Final = "/tmp/scratch"
"""The only writable folder besides /tmp itself. It is in memory and gone with the jail."""

_SCRATCH_BYTES: Final = 128 << 20
_NEW_ROOT: Final = "/tmp"
_OLD_ROOT: Final = "/.old"
_SYSTEM: Final = (
    "/bin",
    "/lib",
    "/lib32",
    "/lib64",
    "/usr/bin",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/share/zoneinfo",
    "/nix/store",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/localtime",
)
_NETWORK: Final = (
    "/etc/ca-certificates",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/pki",
    "/etc/resolv.conf",
    "/etc/ssl",
    "/usr/share/ca-certificates",
)
_DEVICES: Final = ("/dev/full", "/dev/null", "/dev/random", "/dev/urandom", "/dev/zero")
_PACKAGES: Final = ("site-packages", "dist-packages")


def change_root(files: Iterable[str], *, network: bool) -> None:
    """Gives this process, privileged in a mount namespace of its own, the file system of a jail.

    Args:
        files: absolute paths that can be read besides the interpreter.
        network: also shows the files that name lookups and certificates need.

    Raises:
        JailUnavailable: the kernel refuses.
    """
    shown = _outermost([*interpreter_paths(), *_with_targets([*files, *(_NETWORK if network else ())])])
    # A run's umask keeps files private; in the jail another user must reach the interpreter.
    os.umask(0o022)
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", _NEW_ROOT, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    os.mkdir(_NEW_ROOT + _OLD_ROOT)
    pivot_root(_NEW_ROOT, _NEW_ROOT + _OLD_ROOT)
    os.chdir("/")
    os.mkdir("/tmp")
    # Empty, so that processes cannot be inspected.
    os.mkdir("/proc")
    mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, f"size={_SCRATCH_BYTES},mode=1777")
    for path, target in shown:
        _show(path, target)
    os.mkdir(SCRATCH)
    os.chmod(SCRATCH, 0o1777)
    # POSIX semaphores and shared memory live there.
    os.symlink("/tmp", "/dev/shm")
    detach(_OLD_ROOT)
    os.rmdir(_OLD_ROOT)
    make_read_only("/")
    make_writable("/tmp")
    os.chdir(SCRATCH)


@cache
def interpreter_paths() -> tuple[tuple[str, str], ...]:
    """Pairs of path and link target that every jail shows: the system's programs and libraries, and Python."""
    trees = [path for path in sys.path if Path(path).name in _PACKAGES]
    for prefix in (sys.prefix, sys.base_prefix):
        if prefix != "/usr":
            trees += [f"{prefix}/{part}" for part in ("bin", "lib", "lib64", "pyvenv.cfg")]
    return tuple(_with_targets([*_SYSTEM, *_DEVICES, *trees]))


def restrict_import_path() -> None:
    """Removes from `sys.path` what no jail shows, since the scratch folder may stand in its place."""
    trees = tuple(path for path, _ in interpreter_paths())
    sys.path[:] = [path for path in sys.path if any(path == tree or path.startswith(f"{tree}/") for tree in trees)]


def _with_targets(paths: Iterable[str]) -> list[tuple[str, str]]:
    pairs = []
    for path in paths:
        if os.path.exists(path):
            target = os.path.realpath(path)
            pairs += [(path, target), (target, target)]
    return pairs


def _outermost(paths: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The paths that lie in no other path."""
    kept: list[tuple[str, str]] = []
    for path, target in sorted(set(paths)):
        if not any(path == outer or path.startswith(f"{outer}/") for outer, _ in kept):
            kept.append((path, target))
    return kept


def _show(path: str, target: str) -> None:
    source = _OLD_ROOT + target
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.isdir(source):
        os.makedirs(path, exist_ok=True)
    else:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
    mount(source, path, None, MS_BIND | MS_REC)
