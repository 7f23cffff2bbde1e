"""The file system of a jail: the interpreter and its packages to read, a scratch folder in memory, and nothing else."""

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
"""The only folder, with /tmp around it, that can be written. It is in memory and gone with the jail."""

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
    """Gives this process, which has power over a mount namespace of its own, the file system of a jail.

    Args:
        files: absolute paths that can be read beside the interpreter.
        network: shows what looking up names and verifying certificates takes, too.

    Raises:
        JailUnavailable: the kernel refuses.
    """
    shown = _outermost([*interpreter_paths(), *_with_targets([*files, *(_NETWORK if network else ())])])
    # A run keeps what it writes for its owner alone; in the jail somebody else has to find the way to the interpreter.
    os.umask(0o022)
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", _NEW_ROOT, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    os.mkdir(_NEW_ROOT + _OLD_ROOT)
    pivot_root(_NEW_ROOT, _NEW_ROOT + _OLD_ROOT)
    os.chdir("/")
    os.mkdir("/tmp")
    # Empty: where processes could be looked into.
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
    """What every jail shows, as pairs of a path and what it links to: the system's programs and libraries, Python."""
    trees = [path for path in sys.path if Path(path).name in _PACKAGES]
    for prefix in (sys.prefix, sys.base_prefix):
        if prefix != "/usr":
            trees += [f"{prefix}/{part}" for part in ("bin", "lib", "lib64", "pyvenv.cfg")]
    return tuple(_with_targets([*_SYSTEM, *_DEVICES, *trees]))


def import_only_what_is_shown() -> None:
    """Takes from `sys.path` what no jail shows: the scratch folder, where others write, may have the same path."""
    trees = tuple(path for path, _ in interpreter_paths())
    sys.path[:] = [path for path in sys.path if any(path == tree or path.startswith(f"{tree}/") for tree in trees)]


def _with_targets(paths: Iterable[str]) -> list[tuple[str, str]]:
    found = []
    for path in paths:
        if os.path.exists(path):
            target = os.path.realpath(path)
            found += [(path, target), (target, target)]
    return found


def _outermost(paths: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The paths that lie in no other one."""
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
