"""The journal's file: one table, from a place to what was put there.

A place is 77 bytes: rollout key 32, kind 1, turn 6 and call index 6 as decimal digits, digest of the request or call
32. All places of a rollout are adjacent, its trajectory first, so that one step into the index shows whether it is
finished.
Each body has a digest. A row without a matching one is damaged: a reader takes it as absent, a writer replaces it.
"""

import logging
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Final

from xxhash import xxh3_64_digest

from stillhouse.store.private import private_file

DIGEST_BYTES: Final = 8
_LOG = logging.getLogger(__name__)
_VERSION: Final = 3
_LOCK_TIMEOUT_S: Final = 60.0
_CACHE_KIB: Final = 8192
# Pages of the index are changed again and again; the rarer they go from the WAL to the file, the fewer of them do.
_CHECKPOINT_PAGES: Final = 4000

PLACE_BYTES: Final = 77
TRAJECTORY: Final = b"0"
COMPLETION: Final = b"1"
TOOL_RESULT: Final = b"2"
_MAX_NUMBER: Final = 999_999
_NO_DIGEST: Final = bytes(32)

# A changed byte may turn a blob into text that is no UTF-8, which SQLite's Python module refuses to return.
SELECT: Final = "SELECT CAST(body AS BLOB), CAST(digest AS BLOB) FROM entry WHERE place = ?"
_MATCHES: Final = "digest_of({table}.place, CAST({table}.body AS BLOB)) IS CAST({table}.digest AS BLOB)"
IS_WHOLE: Final = _MATCHES.format(table="source")
"""True if a row of the table aliased `source` is intact."""
REPLACING: Final = f"""
ON CONFLICT (place) DO UPDATE SET body = excluded.body, digest = excluded.digest
WHERE NOT ({_MATCHES.format(table="entry").replace("entry.place", "excluded.place")})
"""
"""End of an INSERT into `entry`: the first row at a place stays, unless it is damaged."""
# What || makes is text, and text is less than any blob.
FIRST_KIND: Final = """
SELECT substr(place, 33, 1) FROM entry WHERE place > ?1 AND place < CAST(?1 || x'ff' AS BLOB) ORDER BY place LIMIT 1
"""
"""The least kind stored for a rollout key: `TRAJECTORY` if it is finished."""
# The batch in one step of SQLite, which is one release of the GIL: with a step a row, every row would wait for the
# event loop to release it. ?1 is the places end to end, ?2 the bodies end to end, ?3 a JSON list of where each body
# starts, times 2^32, plus its length, ?4 the digests end to end. substr() makes NULL of an empty blob.
INSERT: Final = f"""
INSERT INTO entry (place, body, digest)
SELECT substr(?1, key * {PLACE_BYTES} + 1, {PLACE_BYTES}),
    coalesce(substr(?2, (value >> 32) + 1, value & 0xffffffff), x''),
    substr(?4, key * {DIGEST_BYTES} + 1, {DIGEST_BYTES})
FROM json_each(?3) WHERE true {REPLACING}
"""

# Bodies are outside the index: keys arrive in random order, and so the bytes of a row are written once, at the end of
# the table, however many rows there are. The views are for people who open the file.
_TABLE: Final = "CREATE TABLE entry (place BLOB NOT NULL, body BLOB NOT NULL, digest BLOB);"
_INDEX: Final = """
CREATE UNIQUE INDEX entry_by_place ON entry (place);
CREATE VIEW completion AS
    SELECT substr(place, 1, 32) AS rollout_key, CAST(substr(place, 34, 6) AS INTEGER) AS turn,
        substr(place, 46, 32) AS request_digest, body
    FROM entry WHERE substr(place, 33, 1) = x'31';
CREATE VIEW tool_result AS
    SELECT substr(place, 1, 32) AS rollout_key, CAST(substr(place, 34, 6) AS INTEGER) AS turn,
        CAST(substr(place, 40, 6) AS INTEGER) AS call_index, substr(place, 46, 32) AS call_digest, body
    FROM entry WHERE substr(place, 33, 1) = x'32';
CREATE VIEW trajectory AS
    SELECT substr(place, 1, 32) AS rollout_key, body FROM entry WHERE substr(place, 33, 1) = x'30';
"""
_NEW: Final = _TABLE + _INDEX
# Version 1 had a table and an index for each kind. The index is made last: to sort the places once takes a fraction of
# the time that putting them in one by one does.
_FROM_VERSION_1: Final = f"""
ALTER TABLE completion RENAME TO old_completion;
ALTER TABLE tool_result RENAME TO old_tool_result;
ALTER TABLE trajectory RENAME TO old_trajectory;
{_TABLE}
INSERT INTO entry (place, body)
    SELECT CAST(rollout_key || '1' || printf('%06d%06d', turn, 0) || request_digest AS BLOB), body FROM old_completion;
INSERT INTO entry (place, body)
    SELECT CAST(rollout_key || '2' || printf('%06d%06d', turn, call_index) || call_digest AS BLOB), body
    FROM old_tool_result;
INSERT INTO entry (place, body)
    SELECT CAST(rollout_key || '0' || printf('%06d%06d', 0, 0) || zeroblob(32) AS BLOB), body FROM old_trajectory;
DROP TABLE old_completion;
DROP TABLE old_tool_result;
DROP TABLE old_trajectory;
{_INDEX}
"""
_FROM_VERSION_2: Final = "ALTER TABLE entry ADD COLUMN digest BLOB;"
# Versions 1 and 2 had no digests: their rows are taken as they are.
_ADD_DIGESTS: Final = "UPDATE entry SET digest = digest_of(place, body);"
_SCRIPTS: Final = {0: _NEW, 1: _FROM_VERSION_1 + _ADD_DIGESTS, 2: _FROM_VERSION_2 + _ADD_DIGESTS}


def digest_of(place: bytes, body: bytes) -> bytes:
    """Return XXH3 of a place and the body there, 8 bytes: an index that leads to another row is noticed as well."""
    return xxh3_64_digest(place + body)


def record_name(place: bytes) -> str:
    """Return what lies at a place, in words for a message."""
    kind = {b"0": "the trajectory", b"1": "completion {turn}", b"2": "tool result {call} of completion {turn}"}
    turn, call = place[33:39].decode(errors="replace").lstrip("0"), place[39:45].decode(errors="replace").lstrip("0")
    known = kind.get(place[32:33], "a record of unknown kind")
    return f"{known.format(turn=turn or '0', call=call or '0')} of rollout {place[:32].hex()}"


class NewerVersion(Exception):
    """The file was written by a newer Stillhouse."""


def place(rollout_key: bytes, kind: bytes, turn: int = 0, call_index: int = 0, digest: bytes = _NO_DIGEST) -> bytes:
    """Return a record's place; raise ValueError if a digest is not 32 bytes, or a number has more than six digits."""
    made = b"%b%b%06d%06d%b" % (rollout_key, kind, turn, call_index, digest)
    # Two wrong lengths could add up to the right one.
    if len(rollout_key) != 32 or len(made) != PLACE_BYTES or not 0 <= turn <= _MAX_NUMBER:
        raise ValueError(
            f"turn {turn}, call {call_index} of rollout {rollout_key.hex()!r}, digest {digest.hex()!r}: expected "
            f"numbers from 0 to {_MAX_NUMBER} and digests of 64 hexadecimal digits"
        )
    return made


def connect(path: Path) -> sqlite3.Connection:
    """Return a connection in autocommit mode, for any thread, whose every transaction is durable once it is done."""
    connection = sqlite3.connect(path, timeout=_LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        connection.create_function("digest_of", 2, digest_of, deterministic=True)
        connection.execute("PRAGMA journal_mode = WAL")
        # With NORMAL a commit survives a kill; with FULL, one fsync each, it survives a power cut.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def prepare(path: Path) -> None:
    """Create or migrate the file, once, also when two processes start at the same moment.

    Raise NewerVersion if a newer Stillhouse wrote it, OSError or sqlite3.Error if it cannot be made or opened.
    """
    private_file(path)
    with closing(connect(path)) as connection:
        if connection.execute("PRAGMA user_version").fetchone()[0] == _VERSION:
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            _bring_up(connection, path)
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise


def _bring_up(connection: sqlite3.Connection, path: Path) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > _VERSION:
        raise NewerVersion(f"it has version {version}, and this Stillhouse knows versions up to {_VERSION}")
    if version == _VERSION:
        return
    started = time.monotonic()
    # Not executescript(), which would commit first.
    for statement in filter(str.strip, _SCRIPTS[version].split(";")):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {_VERSION}")
    if version:
        _LOG.info("journal %s: version %d became %d in %.1f s", path, version, _VERSION, time.monotonic() - started)
