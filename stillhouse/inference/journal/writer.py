"""The writer: one thread that makes all pending writes durable in one transaction, then resolves their futures.

Under load a batch costs what a few rows cost alone, so it starts no sooner than `_INTERVAL_S` after the one before;
a single write is not delayed. Each event loop is woken once a batch.
"""

import asyncio
import queue
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from stillhouse.errors import StoreError
from stillhouse.inference.journal.schema import INSERT, SELECT, digest_of

_INTERVAL_S: Final = 0.005
_MAX_BATCH: Final = 1000
_MAX_BATCH_BYTES: Final = 1 << 25

_Result = bytes | StoreError
_Waiting = asyncio.Future[bytes]


class _Write(NamedTuple):
    place: bytes
    body: bytes
    stored: _Waiting


_Item = _Write | Callable[[], None] | None
"""A row, something to call once the rows before it are durable or refused, or the end."""


class Writer:
    """Writes to the journal, in the order they were given, from a thread that alone uses `connection` until `close`."""

    def __init__(self, connection: sqlite3.Connection, as_error: Callable[[Exception], StoreError]) -> None:
        self._connection = connection
        self._as_error = as_error
        self._items: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def put(self, place: bytes, body: bytes) -> _Waiting:
        """Return a future of this event loop with what is stored at `place` once it is durable.

        It is stored also if the future is cancelled: it was paid for.
        """
        stored: _Waiting = asyncio.get_running_loop().create_future()
        self._items.put(_Write(place, body, stored))
        return stored

    def call_after(self, call: Callable[[], None]) -> None:
        """Call `call` in the writer's thread once all that was put before is durable or refused."""
        self._items.put(call)

    def close(self) -> None:
        self._items.put(None)
        self._thread.join()

    def _run(self) -> None:
        earliest = 0.0
        while not self._closing:
            first = self._items.get()
            if first is not None and (early_s := earliest - time.monotonic()) > 0:
                time.sleep(early_s)
            earliest = time.monotonic() + _INTERVAL_S
            batch, calls = self._gather(first)
            if batch:
                self._commit(batch)
            for call in calls:
                call()

    def _gather(self, first: _Item) -> tuple[list[_Write], list[Callable[[], None]]]:
        batch: list[_Write] = []
        calls: list[Callable[[], None]] = []
        item, num_bytes = first, 0
        while True:
            if item is None:
                self._closing = True
                return batch, calls
            if isinstance(item, _Write):
                batch.append(item)
                num_bytes += len(item.body)
            else:
                calls.append(item)
            if len(batch) >= _MAX_BATCH or num_bytes >= _MAX_BATCH_BYTES:
                return batch, calls
            try:
                item = self._items.get_nowait()
            except queue.Empty:
                return batch, calls

    def _commit(self, batch: list[_Write]) -> None:
        results = self._store(batch)
        cause = results[0].__cause__ if isinstance(results[0], StoreError) else None
        is_full = isinstance(cause, sqlite3.Error) and cause.sqlite_errorcode == sqlite3.SQLITE_FULL
        if len(batch) > 1 and is_full:
            # On a nearly full disk single answers may fit where the batch does not.
            results = [self._store([write])[0] for write in batch]
        settled: dict[asyncio.AbstractEventLoop, list[tuple[_Waiting, _Result]]] = defaultdict(list)
        for write, result in zip(batch, results, strict=True):
            settled[write.stored.get_loop()].append((write.stored, result))
        for loop, pairs in settled.items():
            # A closed loop has no waiters.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_settle, pairs)

    def _store(self, batch: list[_Write]) -> list[_Result]:
        """Return what is stored at each place once the batch is durable, or the error: all of it or nothing."""
        places, bodies = b"".join([write.place for write in batch]), b"".join([write.body for write in batch])
        digests = b"".join([digest_of(write.place, write.body) for write in batch])
        spans, start = [], 0
        for write in batch:
            spans.append((start << 32) + len(write.body))
            start += len(write.body)
        try:
            # One statement is one transaction.
            num_new = self._connection.execute(INSERT, (places, bodies, str(spans), digests)).rowcount
            if num_new == len(batch):
                return [write.body for write in batch]
            return [self._connection.execute(SELECT, (write.place,)).fetchone()[0] for write in batch]
        # Whatever it is, the waiting futures must get it.
        except Exception as error:
            failure = self._as_error(error)
            failure.__cause__ = error
            return [failure] * len(batch)


def _settle(pairs: list[tuple[_Waiting, _Result]]) -> None:
    for stored, result in pairs:
        # Cancelled.
        if stored.done():
            continue
        if isinstance(result, StoreError):
            stored.set_exception(result)
        else:
            stored.set_result(result)
