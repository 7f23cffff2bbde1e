"""Access to a store for its owner only: folders 0700 and files 0600, whatever the umask.

Files of other users and folders that the system shares, such as /tmp, are left alone.
"""

import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_PRIVATE_UMASK: Final = 0o077
_STORE_NAMES: Final = (
    *("artifacts", "batches", "journal", "mlartifacts", "mlflow", "registered"),
    *("reports", "results", "scores", "tracking", "training", "views"),
)
"""Prefixes of the names of outputs of runs, since the folder of a store may contain other files."""

logger = logging.getLogger(__name__)


def private_folder(folder: Path) -> None:
    """Create a folder and its parents for the owner only, or restrict an existing one."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    tighten(folder)


def private_file(path: Path) -> None:
    """Create an empty file for the owner only, or restrict an existing one. SQLite's side files inherit its mode."""
    os.close(os.open(path, os.O_RDONLY | os.O_CREAT, 0o600))
    for file in (path, *(path.with_name(f"{path.name}-{suffix}") for suffix in ("wal", "shm"))):
        with suppress(FileNotFoundError):
            tighten(file)


def private_store(root: Path) -> None:
    """Create the folder of a store for its owner only; an accessible one is restricted with its contents."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_open_to_others(root):
        return
    for entry in root.iterdir():
        if entry.name.startswith(_STORE_NAMES):
            tighten_below(entry)
    tighten(root)
    logger.info("store %s: taken from other users of this machine, who could enter it", root)


def tighten_below(path: Path) -> None:
    """Restrict a file, or a folder with its contents, to its owner."""
    for folder, _, files in os.walk(path):
        for file in files:
            with suppress(FileNotFoundError):
                tighten(Path(folder) / file)
        tighten(Path(folder))
    with suppress(FileNotFoundError):
        tighten(path)


def tighten(path: Path) -> None:
    """Restrict one file or folder to its owner, if that is us."""
    if is_open_to_others(path):
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~_OTHERS)


def is_open_to_others(path: Path) -> bool:
    """Return whether we own it and others may use it; links and sticky folders do not count."""
    status = path.lstat()
    is_shared_on_purpose = stat.S_ISLNK(status.st_mode) or bool(status.st_mode & stat.S_ISVTX)
    return status.st_uid == os.getuid() and bool(status.st_mode & _OTHERS) and not is_shared_on_purpose


@contextmanager
def private_umask() -> Iterator[None]:
    """Make files of this process and its children, inside the block, for their owner only."""
    before = os.umask(_PRIVATE_UMASK)
    try:
        yield
    finally:
        os.umask(before)
