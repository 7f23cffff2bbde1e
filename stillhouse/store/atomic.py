"""Writes that a crash cannot leave half done: temporary name, fsync, rename, fsync of the folder."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stillhouse.errors import StoreError
from stillhouse.store.exchange import exchange
from stillhouse.store.temporary import temporary


def write_atomic(path: Path, data: bytes) -> None:
    """Replaces `path` by `data`; a reader sees the old bytes or the new ones.

    Raises:
        StoreError: no space, no permission, or the folder cannot be made.
    """
    with replaced_atomically(path) as work:
        work.write_bytes(data)


@contextmanager
def replaced_atomically(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` to write to; it takes its place when the block ends well and is gone otherwise.

    Raises:
        StoreError: as `write_atomic`, also for an OSError inside the block.
    """
    # A name like `.` has no place beside it.
    path = path.absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary(path, Path.touch) as work:
            yield work
            sync(work)
            work.replace(path)
            sync(path.parent)
    except OSError as error:
        raise unwritable(path, error) from error


@contextmanager
def replaced_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path` to fill; it takes its place when the block ends well and is gone otherwise.

    Whoever looks, also after a crash, finds the old folder or the new one, each of them whole.

    Raises:
        StoreError: no space, no permission, or `path` is a file; also for an OSError inside the block.
    """
    path = path.absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary(path, Path.mkdir) as work:
            yield work
            for inside in work.rglob("*"):
                sync(inside)
            sync(work)
            _put(work, path)
            sync(path.parent)
    except OSError as error:
        raise unwritable(path, error) from error


def _put(work: Path, path: Path) -> None:
    """Gives the folder `work` the name `path`; the folder that had it is at `work` then, or gone."""
    try:
        work.rename(path)
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    try:
        exchange(work, path)
    except OSError:
        # Where two names cannot be exchanged, a crash between the renames leaves the old folder beside its place.
        aside = work.with_suffix(".old")
        path.rename(aside)
        work.rename(path)
        shutil.rmtree(aside)


def sync(path: Path) -> None:
    """Makes durable what a file holds, or what is named in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def unwritable(path: Path, error: OSError) -> StoreError:
    """The error to raise when `path` cannot be written, with what to do about it."""
    return StoreError(
        f"{path}: cannot be written: {error.strerror or error}{_free_space(path)}. Free some space or mend the "
        "permissions there, or name another place, for the store in runtime.store; then run the same command again: "
        "what finished is kept"
    )


def _free_space(path: Path) -> str:
    """What is left where `path` is to be, in words."""
    for folder in path.absolute().parents:
        with suppress(OSError):
            return f" ({shutil.disk_usage(folder).free / 2**30:.2f} GiB are free)"
    return ""
