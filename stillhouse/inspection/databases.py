"""SQLite files of a store: whether SQLite can use them, and whether every record is as it was written."""

import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final
from urllib.parse import quote

from stillhouse.inference.journal.schema import PLACE_BYTES, digest_of, prepare
from stillhouse.inspection.pages import Record
from stillhouse.store.sqlite import SQLITE_ERRORS

_LOCK_TIMEOUT_S: Final = 60.0
_MAX_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class JournalKind:
    """A kind of journal: one table of keys, bodies and digests."""

    table: str
    key: str
    body: str
    key_bytes: int
    first_version: int
    """Of the file's form: the first with digests."""
    digest_of: Callable[[bytes, bytes], bytes]
    make: Callable[[Path], None]
    """Makes an empty one."""

    def unaltered(self, record: Record, *, has_digests: bool) -> tuple[bytes, bytes] | None:
        """Key and body of a record that is as it was written; None for any other."""
        match record:
            case [bytes(key), bytes(body), bytes(digest)] if self.digest_of(key, body) == digest:
                return key, body
            case [bytes(key), bytes(body)] if not has_digests and len(key) == self.key_bytes:
                return key, body
        return None

    def write(self, path: Path, records: Iterable[tuple[bytes, bytes]]) -> int:
        """Makes a new journal of these records, of which the first with a key stays; how many it has then.

        Raises:
            sqlite3.Error: it cannot be written.
        """
        self.make(path)
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.executemany(
                f"INSERT INTO {self.table} ({self.key}, {self.body}, digest) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                ((key, body, self.digest_of(key, body)) for key, body in records),
            )
            count: int = connection.execute(f"SELECT count(*) FROM {self.table}").fetchone()[0]
            return count


ANSWERS: Final = JournalKind("entry", "place", "body", PLACE_BYTES, 3, digest_of, prepare)


@dataclass(frozen=True, slots=True)
class DatabaseState:
    """What was found in a SQLite file."""

    malformed: str | None = None
    """What SQLite says of a file it cannot use; None for one that it can."""
    has_digests: bool = False
    num_records: int = 0
    """Counted only where they have digests."""
    num_altered: int = 0
    """Records that do not match their digest."""


def inspect_database(path: Path, kind: JournalKind | None) -> DatabaseState:
    """Reads all of a SQLite file, and changes nothing; `kind` is None for a database that is no journal.

    Raises:
        OSError: it cannot be read, or a process kept it locked.
    """
    try:
        uri = f"file:{quote(str(path))}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=_LOCK_TIMEOUT_S)) as connection:
            problems = [row[0] for row in islice(connection.execute("PRAGMA integrity_check"), _MAX_NAMED)]
            if problems != ["ok"]:
                return DatabaseState("; ".join(problems))
            if kind is None:
                return DatabaseState()
            version: int = connection.execute("PRAGMA user_version").fetchone()[0]
            columns = {row[1] for row in connection.execute(f"PRAGMA table_info({kind.table})")}
            if version < kind.first_version:
                problem = f"its header says version {version}, which has no digests, and its records have some"
                return DatabaseState(problem if "digest" in columns else None)
            connection.create_function("digest_of", 2, kind.digest_of, deterministic=True)
            count, num_unaltered = connection.execute(
                f"SELECT count(*), total(digest_of(CAST({kind.key} AS BLOB), CAST({kind.body} AS BLOB)) "
                f"IS CAST(digest AS BLOB)) FROM {kind.table}"
            ).fetchone()
            return DatabaseState(None, True, count, count - int(num_unaltered))
    except SQLITE_ERRORS as error:
        unreadable = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN}
        if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode in unreadable:
            raise OSError(str(error)) from error
        return DatabaseState(str(error))
