"""The journal: what was paid for, durable before it is used.

One SQLite file holds every completion and every tool result by its place in its rollout, and every finished trajectory.
A rollout that was cut off is replayed up to its last durable answer and goes on from there; a finished one is read back
to the byte. Nothing is ever replaced: the first writer of a place wins and every other gets what it wrote, so that two
processes on one journal tell the same story.

Writes of all rollouts go through one thread, which commits what has gathered meanwhile in one transaction: with
`synchronous=FULL` each commit is one fsync, and it survives a power cut, not only a kill. WAL needs a local disk.
"""

import asyncio
import queue
import sqlite3
import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from stillhouse.errors import StoreError

_VERSION: Final = 1
_MAX_BATCH: Final = 1000
_LOCK_TIMEOUT_S: Final = 60.0
# Digests are kept as 32 bytes, and bodies beside an index instead of inside it: keys arrive in random order, and the
# bytes of a row are then written once, at the end of the table, however many rows there are.
_SCHEMA: Final = """
CREATE TABLE completion (
    rollout_key BLOB NOT NULL, turn INTEGER NOT NULL, request_digest BLOB NOT NULL, body BLOB NOT NULL,
    UNIQUE (rollout_key, turn, request_digest));
CREATE TABLE tool_result (
    rollout_key BLOB NOT NULL, turn INTEGER NOT NULL, call_index INTEGER NOT NULL, call_digest BLOB NOT NULL,
    body BLOB NOT NULL, UNIQUE (rollout_key, turn, call_index, call_digest));
CREATE TABLE trajectory (rollout_key BLOB NOT NULL UNIQUE, body BLOB NOT NULL);
"""

_Key = tuple[bytes | int, ...]


@dataclass(frozen=True, slots=True)
class _Table:
    name: str
    columns: tuple[str, ...]

    @property
    def select(self) -> str:
        return f"SELECT body FROM {self.name} WHERE " + " AND ".join(f"{column} = ?" for column in self.columns)

    @property
    def insert(self) -> str:
        marks = ", ".join("?" for _ in self.columns)
        return f"INSERT INTO {self.name} ({', '.join(self.columns)}, body) VALUES ({marks}, ?) ON CONFLICT DO NOTHING"


_COMPLETION: Final = _Table("completion", ("rollout_key", "turn", "request_digest"))
_TOOL_RESULT: Final = _Table("tool_result", ("rollout_key", "turn", "call_index", "call_digest"))
_TRAJECTORY: Final = _Table("trajectory", ("rollout_key",))


@dataclass(frozen=True, slots=True)
class _Write:
    table: _Table
    key: _Key
    body: bytes
    stored: "Future[bytes]"


class Journal:
    """An open journal. Safe to use from several threads and event loops, and by several processes at once.

    Bodies are opaque bytes. Use as a context manager: leaving the block waits for what is still to be written.

    Args:
        path: the SQLite file; made with its folder where it is missing.

    Raises:
        StoreError: it cannot be opened, is no journal, or was written by a newer version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read_lock = threading.Lock()
        self._writes: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._reader = _connect(path)
        except (OSError, sqlite3.Error) as error:
            raise self._error("opened", error) from error
        try:
            _prepare(self._reader)
            self._connection = _connect(path)
        except (sqlite3.Error, _NewerVersion) as error:
            self._reader.close()
            raise self._error("opened", error) from error
        self._writer = threading.Thread(target=self._write_all, name="journal", daemon=True)
        self._writer.start()

    def completion(self, rollout_key: str, turn: int, request_digest: str) -> bytes | None:
        """The completion given at this place, or None."""
        return self._read(_COMPLETION, (_bytes(rollout_key), turn, _bytes(request_digest)))

    async def put_completion(self, rollout_key: str, turn: int, request_digest: str, body: bytes) -> bytes:
        """Makes a completion durable; what holds at its place, which another process may have written first.

        Raises:
            StoreError: no space, no permission, or the disk failed. So for all `put_` methods.
        """
        return await self._put(_COMPLETION, (_bytes(rollout_key), turn, _bytes(request_digest)), body)

    def tool_result(self, rollout_key: str, turn: int, call_index: int, call_digest: str) -> bytes | None:
        """The tool result given at this place, or None."""
        return self._read(_TOOL_RESULT, (_bytes(rollout_key), turn, call_index, _bytes(call_digest)))

    async def put_tool_result(
        self, rollout_key: str, turn: int, call_index: int, call_digest: str, body: bytes
    ) -> bytes:
        """Makes a tool result durable; what holds at its place."""
        return await self._put(_TOOL_RESULT, (_bytes(rollout_key), turn, call_index, _bytes(call_digest)), body)

    def trajectory(self, rollout_key: str) -> bytes | None:
        """The finished trajectory of this rollout, or None."""
        return self._read(_TRAJECTORY, (_bytes(rollout_key),))

    async def put_trajectory(self, rollout_key: str, body: bytes) -> bytes:
        """Makes a finished trajectory durable; what holds for its rollout."""
        return await self._put(_TRAJECTORY, (_bytes(rollout_key),), body)

    def close(self) -> None:
        """Writes what is waiting and closes the file."""
        if self._writer.is_alive():
            self._writes.put(None)
            self._writer.join()
            self._connection.close()
            self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _read(self, table: _Table, key: _Key) -> bytes | None:
        try:
            with self._read_lock:
                row = self._reader.execute(table.select, key).fetchone()
        except sqlite3.Error as error:
            raise self._error("read", error) from error
        return None if row is None else row[0]

    async def _put(self, table: _Table, key: _Key, body: bytes) -> bytes:
        if not self._writer.is_alive():
            raise RuntimeError(f"journal {self.path} is closed")
        stored: Future[bytes] = Future()
        self._writes.put(_Write(table, key, body, stored))
        return await asyncio.wrap_future(stored)

    def _write_all(self) -> None:
        """The writer thread: one transaction for whatever has gathered since the last."""
        while (first := self._writes.get()) is not None:
            batch, closing = [first], False
            while len(batch) < _MAX_BATCH and not closing:
                try:
                    waiting = self._writes.get_nowait()
                except queue.Empty:
                    break
                if waiting is None:
                    closing = True
                else:
                    batch.append(waiting)
            self._commit(batch)
            if closing:
                return

    def _commit(self, batch: list[_Write]) -> None:
        # A task that was cancelled no longer waits, but what it paid for is kept all the same.
        waiting = [write.stored.set_running_or_notify_cancel() for write in batch]
        results = self._store(batch)
        if _is_full(results[0]) and len(batch) > 1:
            # On a disk that is all but full the batch has no room, and one or another answer of it may have.
            results = [self._store([write])[0] for write in batch]
        for write, result, waits in zip(batch, results, waiting, strict=True):
            if waits and isinstance(result, StoreError):
                write.stored.set_exception(result)
            elif waits and isinstance(result, bytes):
                write.stored.set_result(result)

    def _store(self, batch: list[_Write]) -> list[bytes | StoreError]:
        """What holds at each place once the batch is durable, or why it is not: all of it or nothing."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            stored: list[bytes | StoreError] = [self._insert(write) for write in batch]
            self._connection.execute("COMMIT")
            return stored
        # Whatever it is, those who wait must hear of it: this thread is the only one that can tell them.
        except Exception as error:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            failure = self._error("written", error)
            failure.__cause__ = error
            return [failure] * len(batch)

    def _insert(self, write: _Write) -> bytes:
        if self._connection.execute(write.table.insert, (*write.key, write.body)).rowcount == 1:
            return write.body
        return self._connection.execute(write.table.select, write.key).fetchone()[0]

    def _error(self, verb: str, error: Exception) -> StoreError:
        return StoreError(
            f"journal {self.path}: cannot be {verb}: {error}. Free some space or mend the permissions there, or name "
            "another folder in runtime.store; if the file is no SQLite database any more, move it away. Then run the "
            "same command again: every answer that was saved is used again"
        )


def open_journal(store: str | Path) -> Journal:
    """The journal of a store folder.

    Raises:
        StoreError: as `Journal`.
    """
    return Journal(Path(store).absolute() / "journal.sqlite3")


class _NewerVersion(Exception):
    """The file was written by a newer Stillhouse."""


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    """Makes the tables, once, also when two processes start at the same moment."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > _VERSION:
            raise _NewerVersion(f"it has version {version}, and this Stillhouse knows versions up to {_VERSION}")
        if version == 0:
            for statement in filter(str.strip, _SCHEMA.split(";")):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _is_full(result: bytes | StoreError) -> bool:
    cause = result.__cause__ if isinstance(result, StoreError) else None
    return isinstance(cause, sqlite3.Error) and cause.sqlite_errorcode == sqlite3.SQLITE_FULL


def _bytes(digest: str) -> bytes:
    return bytes.fromhex(digest)
