"""Whether SQLite can use a journal, and whether every record of it is as it was written."""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final
from urllib.parse import quote

from stillhouse.inference.journal.schema import digest_of
from stillhouse.store.sqlite import SQLITE_ERRORS

_LOCK_TIMEOUT_S: Final = 60.0
_MAX_NAMED: Final = 3
_FIRST_WITH_DIGESTS: Final = 3
"""Version of a journal's form: the first whose records have digests."""


@dataclass(frozen=True, slots=True)
class JournalState:
    """What was found in a journal."""

    malformed: str | None = None
    """What SQLite says of a file it cannot use; None for one that it can."""
    num_records: int | None = None
    """None where they have no digests."""
    num_altered: int = 0
    """Records that do not match their digest."""


def inspect_journal(path: Path) -> JournalState:
    """Read all of a journal, and change nothing.

    Raises:
        OSError: it cannot be read, or a process kept it locked.
    """
    try:
        uri = f"file:{quote(str(path))}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=_LOCK_TIMEOUT_S)) as connection:
            problems = [row[0] for row in islice(connection.execute("PRAGMA integrity_check"), _MAX_NAMED)]
            if problems != ["ok"]:
                return JournalState("; ".join(problems))
            version: int = connection.execute("PRAGMA user_version").fetchone()[0]
            columns = {row[1] for row in connection.execute("PRAGMA table_info(entry)")}
            if version < _FIRST_WITH_DIGESTS:
                problem = f"its header says version {version}, which has no digests, and its records have some"
                return JournalState(problem if "digest" in columns else None)
            connection.create_function("digest_of", 2, digest_of, deterministic=True)
            count, num_unaltered = connection.execute(
                "SELECT count(*), total(digest_of(CAST(place AS BLOB), CAST(body AS BLOB)) IS CAST(digest AS BLOB)) "
                "FROM entry"
            ).fetchone()
            return JournalState(None, count, count - int(num_unaltered))
    except SQLITE_ERRORS as error:
        unreadable = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN}
        if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode in unreadable:
            raise OSError(str(error)) from error
        return JournalState(str(error))
