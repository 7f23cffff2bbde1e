"""`Journal`: look-ups, puts and claims on one journal file, which all users in a process share by `open_journal`."""

import asyncio
import logging
import threading
from contextlib import AbstractContextManager, ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from stillhouse.errors import StoreError
from stillhouse.inference.journal.claims import Claims
from stillhouse.inference.journal.schema import (
    COMPLETION,
    FIRST_KIND,
    SELECT,
    TOOL_RESULT,
    TRAJECTORY,
    NewerVersion,
    connect,
    digest_of,
    place,
    prepare,
    record_name,
)
from stillhouse.inference.journal.writer import Writer
from stillhouse.processes.shared import Shared
from stillhouse.store.sqlite import SQLITE_ERRORS, is_damage, recover_remedy

JOURNAL_FILE: Final = "journal.sqlite3"
"""Name of a journal in its folder."""
_KEY_BYTES: Final = 32

logger = logging.getLogger(__name__)


class Journal:
    """An open journal. Safe to use from several threads and event loops, and by several processes at once.

    Keys and digests are SHA-256 in hex, bodies opaque bytes. A damaged record is logged and counts as absent, so that
    it is requested again and replaced. Leaving its block waits for pending writes and frees all claims. Raises
    StoreError if it cannot be opened, is no journal, or was written by a newer version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._closed = False
        self._lock = threading.Lock()
        self._read_lock = threading.Lock()
        # For each claimed rollout the places filled since, if it was empty before: only this journal fills any, so
        # other look-ups need no query. None if it was not empty.
        self._claimed: dict[bytes, set[bytes] | None] = {}
        # Claimed rollouts with a pending write of a cancelled task.
        self._cut_off: set[bytes] = set()
        self._reported: set[bytes] = set()
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            prepare(path)
            with ExitStack() as opened:
                self._reader = opened.enter_context(closing(connect(path)))
                self._connection = opened.enter_context(closing(connect(path)))
                self._claims = Claims(path.with_name(f"{path.name}-claims"))
                opened.pop_all()
        except (OSError, *SQLITE_ERRORS, NewerVersion) as error:
            raise self._error("opened", error) from error
        self._writer = Writer(self._connection, partial(self._error, "written"))

    async def claim(self, rollout_key: str) -> bool:
        """Return whether this journal may pay for the rollout: not while another, or an earlier claim of this, does.

        A claim holds until the trajectory is put, `disclaim`, `close`, or the end of the process. Look up trajectory
        and completions once it is granted: the previous owner may have added some. For a rollout without records these
        look-ups cost nothing. A finished rollout is granted to everybody. Raise StoreError if the journal cannot be
        read, or the file system has no locks.
        """
        key = bytes.fromhex(rollout_key)
        with self._lock:
            self._check_open()
            if key in self._claimed:
                return False
            try:
                granted = self._claims.take(key)
            except OSError as error:
                raise self._error("claimed from", error) from error
            if not granted:
                return self._look(key)[1]
            try:
                has_records, is_finished = self._look(key)
            except StoreError:
                self._claims.free(key)
                raise
            if is_finished:
                self._claims.free(key)
            else:
                self._claimed[key] = None if has_records else set()
        return True

    def disclaim(self, rollout_key: str) -> None:
        """Free a claimed rollout that has no trajectory, once its pending writes are durable."""
        key = bytes.fromhex(rollout_key)
        if key in self._cut_off:
            self._writer.call_after(partial(self._free, key))
        else:
            self._free(key)

    def completion(self, rollout_key: str, turn: int, request_digest: str) -> bytes | None:
        return self._read(_place(rollout_key, COMPLETION, turn, 0, request_digest))

    async def put_completion(self, rollout_key: str, turn: int, request_digest: str, body: bytes) -> bytes:
        """Make a completion durable, and return what is stored there, which another process may have written first.

        Raise StoreError, as all `put_` methods, if there is no space, no permission, or the disk failed.
        """
        return await self._put(_place(rollout_key, COMPLETION, turn, 0, request_digest), body)

    def tool_result(self, rollout_key: str, turn: int, call_index: int, call_digest: str) -> bytes | None:
        return self._read(_place(rollout_key, TOOL_RESULT, turn, call_index, call_digest))

    async def put_tool_result(
        self, rollout_key: str, turn: int, call_index: int, call_digest: str, body: bytes
    ) -> bytes:
        """Make a tool result durable, and return what is stored there."""
        return await self._put(_place(rollout_key, TOOL_RESULT, turn, call_index, call_digest), body)

    def trajectory(self, rollout_key: str) -> bytes | None:
        return self._read(place(bytes.fromhex(rollout_key), TRAJECTORY))

    def has_trajectory(self, rollout_key: str) -> bool:
        """Return whether a trajectory is stored, without reading it: a damaged one counts as well."""
        row = self._ask(FIRST_KIND, bytes.fromhex(rollout_key))
        return row is not None and row[0] == TRAJECTORY

    async def put_trajectory(self, rollout_key: str, body: bytes) -> bytes:
        """Make a finished trajectory durable and end its claim; return what is stored there."""
        key = bytes.fromhex(rollout_key)
        stored = await self._put(place(key, TRAJECTORY), body)
        self._free(key)
        return stored

    def close(self) -> None:
        """Write what is pending, free what is claimed and close the file."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._writer.close()
        self._connection.close()
        with self._read_lock:
            self._reader.close()
        with self._lock:
            self._claimed.clear()
            self._claims.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _read(self, where: bytes) -> bytes | None:
        filled = self._claimed.get(where[:_KEY_BYTES])
        if filled is not None and where not in filled:
            return None
        return self._stored(where)

    def _stored(self, where: bytes) -> bytes | None:
        row = self._ask(SELECT, where)
        if row is None:
            return None
        body: bytes | None = row[0]
        if body is not None and row[1] == digest_of(where, body):
            return body
        if where not in self._reported:
            self._reported.add(where)
            logger.warning(
                "journal %s: %s is damaged: its bytes do not match their digest. It is not used and will be made "
                "again; `stillhouse doctor --store` checks the whole store",
                self.path,
                record_name(where),
            )
        return None

    def _look(self, key: bytes) -> tuple[bool, bool]:
        """Return whether the rollout has records, and whether an intact trajectory is among them."""
        row = self._ask(FIRST_KIND, key)
        has_trajectory = row is not None and row[0] == TRAJECTORY
        return row is not None, has_trajectory and self._stored(place(key, TRAJECTORY)) is not None

    def _ask(self, question: str, argument: bytes) -> tuple[Any, ...] | None:
        try:
            with self._read_lock:
                row: tuple[Any, ...] | None = self._reader.execute(question, (argument,)).fetchone()
        except SQLITE_ERRORS as error:
            raise self._error("read", error) from error
        return row

    async def _put(self, where: bytes, body: bytes) -> bytes:
        key = where[:_KEY_BYTES]
        with self._lock:
            self._check_open()
            filled = self._claimed.get(key)
            if filled is not None:
                filled.add(where)
            stored = self._writer.put(where, body)
        try:
            return await stored
        except asyncio.CancelledError:
            with self._lock:
                if key in self._claimed:
                    self._cut_off.add(key)
            raise

    def _free(self, key: bytes) -> None:
        with self._lock:
            if key in self._claimed:
                del self._claimed[key]
                self._cut_off.discard(key)
                self._claims.free(key)

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError(f"journal {self.path} is closed")

    def _error(self, verb: str, error: Exception) -> StoreError:
        if is_damage(error):
            remedy = recover_remedy(self.path)
        else:
            remedy = "Free some space, have its owner set runtime.store_mode to `group`, or name another runtime.store"
        return StoreError(
            f"journal {self.path}: cannot be {verb}: {error}. {remedy}. Then run the same command again: every answer "
            "that was saved is used again",
            code="journal",
        )


def _place(rollout_key: str, kind: bytes, turn: int, call_index: int, digest: str) -> bytes:
    return place(bytes.fromhex(rollout_key), kind, turn, call_index, bytes.fromhex(digest))


_open: Final = Shared[Journal]()


def open_journal(folder: str | Path) -> AbstractContextManager[Journal]:
    """Yield a folder's journal; blocks that overlap share it, and with it each fsync. Raise StoreError as `Journal`."""
    path = Path(folder).absolute() / JOURNAL_FILE
    return _open.used(path, partial(Journal, path))
