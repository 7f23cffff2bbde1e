"""Who may use a store: its owner alone (folders 0700, files 0600), or a group (2770, 0660), whatever the umask.

The mode of the store's folder says which, and what lies below follows it. Files of other users and folders that the
system shares, such as /tmp, are left alone.
"""

import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal

StoreMode = Literal["private", "group"]
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_GROUPS: Final = stat.S_IRWXG | stat.S_ISGID
_PRIVATE_UMASK: Final = 0o077
_GROUP_UMASK: Final = 0o007
_STORE_NAMES: Final = (
    *("artifacts", "batches", "journal", "mlartifacts", "mlflow", "registered"),
    *("reports", "results", "scores", "tracking", "training", "views", "vllm"),
)
"""Prefixes of the names of outputs of runs, since the folder of a store may contain other files."""

logger = logging.getLogger(__name__)


def private_folder(folder: Path) -> None:
    """Create a folder in a store, and its parents, or give an existing one the access of the folder above it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    set_access(folder)


def private_file(path: Path) -> None:
    """Create an empty file, or give an existing one the access of its folder. SQLite's side files inherit its mode."""
    os.close(os.open(path, os.O_RDONLY | os.O_CREAT, 0o600))
    for file in (path, *(path.with_name(f"{path.name}-{suffix}") for suffix in ("wal", "shm"))):
        with suppress(FileNotFoundError):
            set_access(file)


def private_store(root: Path, mode: StoreMode | None = None) -> None:
    """Create the folder of a store; one of ours in another mode is changed with its contents, None keeps a group's.

    What this process makes from now on in a group's store is the group's.
    """
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    for_group = is_groups(root) if mode is None else mode == "group"
    if set_access(root, for_group=for_group):
        for entry in root.iterdir():
            if entry.name.startswith(_STORE_NAMES):
                set_access_below(entry, for_group=for_group)
        logger.info("store %s: is for %s from now on", root, "its group" if for_group else "its owner alone")
    if is_groups(root):
        os.umask(_GROUP_UMASK)


def is_groups(folder: Path) -> bool:
    return folder.stat().st_mode & _GROUPS == _GROUPS


def set_access_below(path: Path, *, for_group: bool | None = None) -> None:
    """Do as `set_access` for a file, or a folder with its contents."""
    for_group = is_groups(path.parent) if for_group is None else for_group
    for folder, _, files in os.walk(path):
        for file in (*files, "."):
            with suppress(FileNotFoundError):
                set_access(Path(folder) / file, for_group=for_group)
    with suppress(FileNotFoundError):
        set_access(path, for_group=for_group)


def set_access(path: Path, *, for_group: bool | None = None) -> bool:
    """Give a file or folder of ours to a group or to us alone; return whether it was otherwise.

    None does as the folder above has it. Links and sticky folders are left alone.
    """
    status = path.lstat()
    mode = stat.S_IMODE(status.st_mode)
    wanted = mode & ~_OTHERS
    if is_groups(path.parent) if for_group is None else for_group:
        wanted |= (mode & stat.S_IRWXU) >> 3 | (stat.S_ISGID if stat.S_ISDIR(status.st_mode) else 0)
    if status.st_uid != os.getuid() or mode == wanted or mode & stat.S_ISVTX or stat.S_ISLNK(status.st_mode):
        return False
    path.chmod(wanted)
    return True


@contextmanager
def private_umask(folder: Path | None = None) -> Iterator[None]:
    """Make files of this process and its children, inside the block, for their owner only, or for a folder's group."""
    before = os.umask(_GROUP_UMASK if folder is not None and is_groups(folder) else _PRIVATE_UMASK)
    try:
        yield
    finally:
        os.umask(before)
