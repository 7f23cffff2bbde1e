"""Atomic writes: temporary name, fsync, rename, fsync of the folder.

A writer locks its temporary file or folder. The kernel releases the lock with the process, also of one that was killed,
so that the next write into the same folder recognises what was left over and removes it.
"""

import ctypes
import errno
import fcntl
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Final

from stillhouse.errors import StoreError
from stillhouse.store.private import is_groups, set_access_below


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` by `data`; a reader sees the old bytes or the new ones. Raises as `replaced_atomically`."""
    with replaced_atomically(path) as work:
        work.write_bytes(data)


def replaced_atomically(path: Path) -> AbstractContextManager[Path]:
    """Yield a temporary file beside `path`; it replaces `path` if the block succeeds and is removed otherwise.

    Raises StoreError for an OSError inside the block, and where the folder cannot be made.
    """
    return _replaced(path, Path.touch)


def replaced_folder(path: Path) -> AbstractContextManager[Path]:
    """Do as `replaced_atomically` for a folder: a reader finds the old or the new one complete, also after a crash."""
    return _replaced(path, Path.mkdir)


@contextmanager
def _replaced(path: Path, make: Callable[[Path], None]) -> Iterator[Path]:
    # A name like `.` has no siblings.
    path = path.absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary(path, make) as work:
            yield work
            if is_groups(path.parent):
                # What safetensors or `tempfile` wrote is its owner's alone, whatever the umask.
                set_access_below(work)
            for changed in (*work.rglob("*"), work):
                sync(changed)
            _put(work, path)
            sync(path.parent)
    except OSError as error:
        raise unwritable(path, error) from error


def _put(work: Path, path: Path) -> None:
    """Rename `work` to `path`; an existing folder is left at `work`, or deleted."""
    try:
        work.rename(path)
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    try:
        exchange(work, path)
    except OSError:
        # Without an atomic exchange, a crash between the renames leaves the old folder under another name.
        aside = work.with_suffix(".old")
        path.rename(aside)
        work.rename(path)
        shutil.rmtree(aside)


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def unwritable(path: Path, error: OSError) -> StoreError:
    """Return the error for a `path` that cannot be written, with a remedy."""
    free = ""
    for folder in path.absolute().parents:
        with suppress(OSError):
            free = f" ({shutil.disk_usage(folder).free / 2**30:.2f} GiB are free)"
            break
    return StoreError(
        f"{path}: cannot be written: {error.strerror or error}{free}. Free some space, have the owner of a store "
        "set runtime.store_mode to `group`, or name another place, for the store in runtime.store; then run the same "
        "command again: what finished is kept"
    )


_TEMPORARY_NAME: Final = re.compile(r"\..+\.[0-9a-f]{32}\.part")


@contextmanager
def temporary(path: Path, make: Callable[[Path], None]) -> Iterator[Path]:
    """Yield a new file or folder beside `path` under a unique name, removed after the block if still there.

    Unlike `tempfile`, it takes the mode of ordinary files.
    """
    for entry in os.scandir(path.parent):
        if _TEMPORARY_NAME.fullmatch(entry.name):
            leftover = path.parent / entry.name
            with suppress(OSError):
                leftover_lock = _lock(leftover)
                try:
                    _remove(leftover)
                finally:
                    os.close(leftover_lock)
    while True:
        work = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
        make(work)
        try:
            lock: int | None = _lock(work)
        except (BlockingIOError, FileNotFoundError):
            # Another writer mistook it for a leftover before it was locked.
            continue
        except OSError:
            # The file system has no locks: leftovers stay.
            lock = None
        break
    try:
        yield work
    finally:
        _remove(work)
        if lock is not None:
            os.close(lock)


def _lock(path: Path) -> int:
    """Lock `path` and return the file descriptor that holds the lock."""
    file = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The previous holder of the lock may have removed it.
        path.stat()
    except OSError:
        os.close(file)
        raise
    return file


def _remove(work: Path) -> None:
    if work.is_dir():
        shutil.rmtree(work, ignore_errors=True)
    else:
        work.unlink(missing_ok=True)


# From linux/fcntl.h and linux/fs.h.
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2


def exchange(first: Path, second: Path) -> None:
    """Exchange the names of two files or folders atomically by renameat2(2); raise OSError where there is none."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError as error:
        raise OSError("this system cannot exchange names") from error
    if renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(first), None, str(second))
