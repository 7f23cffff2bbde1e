"""A new journal from all that can be read of a damaged one, which is kept beside it under another name."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from stillhouse.errors import StoreError
from stillhouse.inference.journal.claims import Claims
from stillhouse.inspection.databases import FIRST_WITH_DIGESTS, unaltered, write_journal
from stillhouse.inspection.pages import read_records, user_version
from stillhouse.store.atomic import sync
from stillhouse.store.sqlite import SQLITE_ERRORS


@dataclass(frozen=True, slots=True)
class Salvaged:
    """What became of a damaged file."""

    path: Path
    num_records: int
    kept: Path
    """The damaged file."""


def salvage(path: Path) -> Salvaged:
    """Puts a new file in the place of the damaged journal at `path`, with every record of it that can be read.

    Records are read page by page, so that damage to one page costs the records on it alone. Whoever looks, also after
    a crash, finds the old file or the new one. What an earlier salvage put aside is read once more.

    Raises:
        StoreError: another process uses the journal, nothing in it can be read, or the folder cannot be written.
    """
    claims = Claims(path.with_name(f"{path.name}-claims"))
    work = path.with_name(f"{path.name}.salvaged-{os.getpid()}")
    try:
        if not claims.take_all():
            raise StoreError(f"{path}: a process is writing to this journal; stop it, then run the same command again")
        num_records = write_journal(work, _unaltered_records(path))
        if num_records == 0:
            raise StoreError(
                f"{path}: no record in it can be read. Put a copy from a backup in its place, or move it away and "
                "start anew: its answers are paid for again"
            )
        return Salvaged(path, num_records, _put_in_place(work, path))
    except (OSError, *SQLITE_ERRORS) as error:
        raise StoreError(
            f"{path}: cannot be salvaged: {error}. It is as it was. Free some space or mend the permissions in "
            f"{path.parent}, then run the same command again"
        ) from error
    finally:
        claims.close()
        for suffix in ("", "-wal", "-shm"):
            work.with_name(f"{work.name}{suffix}").unlink(missing_ok=True)


def _unaltered_records(path: Path) -> Iterator[tuple[bytes, bytes]]:
    kept = [file for file in path.parent.glob(f"{path.name}.damaged-*") if not file.name.endswith(("-wal", "-shm"))]
    for source in (path, *sorted(kept)):
        has_digests = user_version(source) >= FIRST_WITH_DIGESTS
        records = (unaltered(record, has_digests=has_digests) for record in read_records(source))
        yield from (record for record in records if record is not None)


def _put_in_place(work: Path, path: Path) -> Path:
    """Replaces the file; returns where the old one is kept."""
    kept = path.with_name(f"{path.name}.damaged-{datetime.now(UTC):%Y%m%dT%H%M%S.%f}")
    # One file: a WAL would be taken for that of whatever has its name.
    with closing(sqlite3.connect(work)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    sync(work)
    os.link(path, kept)
    for suffix in ("-wal", "-shm"):
        companion = path.with_name(f"{path.name}{suffix}")
        if companion.exists():
            companion.rename(kept.with_name(f"{kept.name}{suffix}"))
    work.replace(path)
    sync(path.parent)
    return kept
