"""A store is for its owner alone: folders 0700 and files 0600, whatever the umask is.

What belongs to somebody else stays as it is, and so does a folder that the system keeps for everybody, such as /tmp.
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
_OF_A_STORE: Final = (
    "artifacts",
    "batches",
    "journal",
    "mlartifacts",
    "mlflow",
    "registered",
    "reports",
    "results",
    "tracking",
    "training",
    "views",
)
"""Starts of the names of what runs leave behind: a store may lie in a folder that holds other things too."""

logger = logging.getLogger(__name__)


def private_folder(folder: Path) -> None:
    """Makes a folder for its owner alone, with those above it where they are missing; tightens one that is there.

    Raises:
        OSError: it cannot be made.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    tighten(folder)


def private_file(path: Path) -> None:
    """Makes an empty file for its owner alone, or tightens the one that is there. SQLite's own files take its mode.

    Raises:
        OSError: it cannot be made.
    """
    os.close(os.open(path, os.O_RDONLY | os.O_CREAT, 0o600))
    for one in (path, *(path.with_name(f"{path.name}-{suffix}") for suffix in ("wal", "shm"))):
        with suppress(FileNotFoundError):
            tighten(one)


def private_store(root: Path) -> None:
    """Makes the folder of a store for its owner alone; one that others could enter is tightened with all it holds.

    Raises:
        OSError: it cannot be made.
    """
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_open_to_others(root):
        return
    for entry in root.iterdir():
        if entry.name.startswith(_OF_A_STORE):
            tighten_below(entry)
    tighten(root)
    logger.info("store %s: taken from other users of this machine, who could enter it", root)


def tighten_below(path: Path) -> None:
    """Takes a file, or a folder with all that is below it, from everybody but its owner."""
    for folder, _, files in os.walk(path):
        for file in files:
            with suppress(FileNotFoundError):
                tighten(Path(folder) / file)
        tighten(Path(folder))
    with suppress(FileNotFoundError):
        tighten(path)


def tighten(path: Path) -> None:
    """Takes one file or folder from everybody but its owner, if that is us."""
    if is_open_to_others(path):
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~_OTHERS)


def is_open_to_others(path: Path) -> bool:
    """Whether it is ours to close and somebody else may use it; links lead elsewhere and do not count."""
    found = path.lstat()
    is_shared_on_purpose = stat.S_ISLNK(found.st_mode) or bool(found.st_mode & stat.S_ISVTX)
    return found.st_uid == os.getuid() and bool(found.st_mode & _OTHERS) and not is_shared_on_purpose


@contextmanager
def private_umask() -> Iterator[None]:
    """While entered, what this process and those it starts make is for its owner alone, whoever makes it."""
    before = os.umask(_PRIVATE_UMASK)
    try:
        yield
    finally:
        os.umask(before)
