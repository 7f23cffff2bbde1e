"""Journals of a few rollouts each, for processes on other machines: SQLite needs all users of one file on one machine.

The journal's records of its rollouts are copied into a part, which is merged back when they are done; answers in either
are not paid for again. A part left by a killed run is merged back by the next one, unless its process still runs.
"""

import asyncio
import fcntl
import logging
import shutil
import sqlite3
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Final

from stillhouse.errors import StoreError
from stillhouse.inference.journal.journal import JOURNAL_FILE
from stillhouse.inference.journal.schema import IS_WHOLE, REPLACING, NewerVersion, connect, prepare, record_name
from stillhouse.store.private import private_folder
from stillhouse.store.sqlite import SQLITE_ERRORS, is_damage, recover_remedy

_LOCK_FILE: Final = "lock"

_COPY: Final = (
    f"INSERT INTO entry (place, body, digest) SELECT place, body, digest FROM other.entry source WHERE {IS_WHOLE}"
)
_LEND: Final = f"{_COPY} AND place > ?1 AND place < CAST(?1 || x'ff' AS BLOB) {REPLACING}"
_TAKE_OVER: Final = f"{_COPY} {REPLACING}"
_DAMAGED: Final = f"SELECT CAST(place AS BLOB) FROM other.entry source WHERE NOT ({IS_WHOLE})"

logger = logging.getLogger(__name__)


def lend(journal: Path, part: Path, rollout_keys: Iterable[str]) -> None:
    """Copy records of rollouts to a part, which may hold some, unless it is in use; raise StoreError on failure."""
    source = journal / JOURNAL_FILE
    private_folder(part)
    with _locked(part) as is_free:
        if is_free and source.is_file():
            with joined(part / JOURNAL_FILE, source) as connection:
                connection.executemany(_LEND, ((bytes.fromhex(key),) for key in rollout_keys))


def take_back(part: Path, journal: Path) -> None:
    """Copy a part's records to the journal and remove it, unless it is in use; raise StoreError where that fails."""
    source = part / JOURNAL_FILE
    with _locked(part) as is_free:
        if is_free and source.is_file():
            with joined(journal / JOURNAL_FILE, source) as connection:
                take_over(connection, source)
        if is_free:
            shutil.rmtree(part)


@asynccontextmanager
async def used(part: Path, look_s: float = 1.0) -> AsyncIterator[None]:
    """Lock the part, also against another process whose run was started again; wait until it is free.

    The lock ends with this process, however it ends.
    """
    private_folder(part)
    while True:
        with _locked(part) as is_free:
            if is_free:
                yield
                return
        await asyncio.sleep(look_s)


@contextmanager
def _locked(part: Path) -> Iterator[bool]:
    """Yield whether the part is not in use, and is locked within the block."""
    with (part / _LOCK_FILE).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def take_over(connection: sqlite3.Connection, source: Path) -> None:
    """Copy, within `joined`, what this journal lacks from the other one, without damaged records."""
    connection.execute(_TAKE_OVER)
    for (place,) in connection.execute(_DAMAGED):
        logger.warning("journal %s: %s is damaged and left out; it will be made again", source, record_name(place))


@contextmanager
def joined(target: Path, source: Path) -> Iterator[sqlite3.Connection]:
    """Open a transaction on the journal `target` that sees `source` as `other`; raise StoreError where that fails."""
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in (source, target):
            prepare(path)
        with closing(connect(target)) as connection:
            connection.execute("ATTACH ? AS other", (str(source),))
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")
    except (OSError, *SQLITE_ERRORS, NewerVersion) as error:
        damaged = f"If one of them is damaged: {recover_remedy(target)}. " if is_damage(error) else ""
        raise StoreError(
            f"journal {target}: cannot take the answers of {source}: {error}. {damaged}Free some space or mend the "
            "permissions there, then run the same command again: both are kept"
        ) from error
