"""Writes that a crash cannot leave half done: temporary name, fsync, rename, fsync of the folder."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stillhouse.errors import StoreError


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
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        work = temporary_name(path)
        try:
            yield work
            with work.open("rb") as file:
                os.fsync(file.fileno())
            work.replace(path)
        except BaseException:
            work.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
    except OSError as error:
        raise unwritable(path, error) from error


def temporary_name(path: Path) -> Path:
    """A name beside `path` that nobody else uses; what `tempfile` makes would stay hidden from other users."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}")


def sync_folder(folder: Path) -> None:
    """Makes renames inside `folder` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def unwritable(path: Path, error: OSError) -> StoreError:
    """The error to raise when `path` cannot be written, with what to do about it."""
    return StoreError(
        f"{path}: cannot be written: {error.strerror or error}. Free some space or mend the permissions there, or name "
        "another folder in runtime.store; then run the same command again: what finished is kept"
    )
