"""Temporary files and folders, known for left over once their writer is dead.

Who writes holds a lock on what it writes to. The kernel ends a lock with its process, also with one that was killed, so
that the next write into the same folder can tell what is left over from what is under way, and removes it.
"""

import fcntl
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_NAME: Final = re.compile(r"\..+\.[0-9a-f]{32}\.part")


@contextmanager
def temporary(path: Path, make: Callable[[Path], None]) -> Iterator[Path]:
    """A file or folder beside `path` under a name that nobody else uses; gone after the block, if it is still there.

    What `tempfile` makes would stay hidden from other users.

    Raises:
        OSError: it cannot be made.
    """
    _remove_left_over(path.parent)
    work, lock = _claim(path, make)
    try:
        yield work
    finally:
        _remove(work)
        if lock is not None:
            os.close(lock)


def _claim(path: Path, make: Callable[[Path], None]) -> tuple[Path, int | None]:
    while True:
        work = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
        make(work)
        try:
            return work, _lock(work)
        except (BlockingIOError, FileNotFoundError):
            # Not locked yet, it was taken for left over by another writer.
            continue
        except OSError:
            # No locks on this file system: what is left over there stays.
            return work, None


def _lock(path: Path) -> int:
    """The open file that holds the lock on `path`.

    Raises:
        BlockingIOError: another holds it.
        FileNotFoundError: it is gone.
        OSError: this file system has no locks.
    """
    file = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # It may have been removed by the one who held the lock before.
        path.stat()
    except OSError:
        os.close(file)
        raise
    return file


def _remove_left_over(folder: Path) -> None:
    for entry in os.scandir(folder):
        if _NAME.fullmatch(entry.name):
            work = folder / entry.name
            with suppress(OSError):
                lock = _lock(work)
                try:
                    _remove(work)
                finally:
                    os.close(lock)


def _remove(work: Path) -> None:
    if work.is_dir():
        shutil.rmtree(work, ignore_errors=True)
    else:
        work.unlink(missing_ok=True)
