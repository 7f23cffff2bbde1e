"""Batches that are under way at the endpoint: their notes on disk, and who waits for their answers.

The notes let a killed run find its batches again instead of paying twice. A note is written before its batch is created
and again when the batch has an id. A run that is killed in between finds the batch by the note
(`BatchEndpoint.find`). A note is removed when all its requests are answered.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import orjson

from stillhouse.inference.batch.wire import BatchEndpoint, BatchNote
from stillhouse.inference.failures import RequestFailed
from stillhouse.store.atomic import write_atomic
from stillhouse.types import JsonObject

_LOG = logging.getLogger(__name__)
_KEPT_S: Final = 30 * 86_400.0
"""OpenAI deletes a batch's files 30 days after it ended (https://platform.openai.com/docs/guides/batch), Anthropic its
results 29 days after."""


class BatchNotes:
    """The notes of one folder, for one model of one endpoint."""

    def __init__(self, folder: Path, base_url: str, model: str) -> None:
        self._folder = folder
        self._base_url = base_url
        self._model = model

    def open(self) -> Iterator[BatchNote]:
        """Yield the notes of batches that may still hold answers, oldest first."""
        notes = []
        for path in sorted(self._folder.glob("*.json")):
            try:
                row = orjson.loads(path.read_bytes())
                note = BatchNote(**row | {"custom_ids": tuple(row["custom_ids"])})
            except (OSError, ValueError, TypeError, KeyError) as error:
                _LOG.warning("%s: not a note of a batch, left alone: %s", path, error)
                continue
            if note.created < time.time() - _KEPT_S:
                path.unlink(missing_ok=True)
            elif (note.base_url, note.model) == (self._base_url, self._model):
                notes.append(note)
        yield from sorted(notes, key=lambda note: note.created)

    def add(self, custom_ids: tuple[str, ...]) -> BatchNote:
        """Write and return the note of a batch about to be created; raise StoreError if it cannot be written."""
        note = BatchNote(uuid.uuid4().hex, self._base_url, self._model, time.time(), None, custom_ids)
        self._write(note)
        return note

    def with_id(self, note: BatchNote, batch_id: str) -> BatchNote:
        """Return the note with its batch's id, on disk; raise StoreError if it cannot be written."""
        note = replace(note, batch_id=batch_id)
        self._write(note)
        return note

    def strike(self, note: BatchNote, answered: set[str]) -> None:
        """Strike out answered requests; a note with none left is removed. Raise StoreError if it cannot be written."""
        left = tuple(custom_id for custom_id in note.custom_ids if custom_id not in answered)
        if left:
            self._write(replace(note, custom_ids=left))
        else:
            self._path(note).unlink(missing_ok=True)

    def _write(self, note: BatchNote) -> None:
        write_atomic(self._path(note), orjson.dumps(note))

    def _path(self, note: BatchNote) -> Path:
        return self._folder / f"{note.tag}.json"


@dataclass(slots=True, eq=False)
class BatchRequest:
    digest: str
    body: bytes
    answer: "asyncio.Future[JsonObject]"

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            # A copy for each: an exception collects the traceback of every task that raises it.
            self.answer.set_exception(RequestFailed(error.failure) if isinstance(error, RequestFailed) else error)


@dataclass(slots=True, eq=False)
class OpenBatch:
    """Hands out the answers of one batch once it has ended."""

    wire: BatchEndpoint
    note: BatchNote
    requests: dict[str, BatchRequest] = field(default_factory=dict)
    """Waiting requests by custom id."""
    answered: set[str] = field(default_factory=set)
    """Custom ids of requests that got their answer or their failure."""
    watch: "asyncio.Task[None] | None" = None

    def follow(self) -> None:
        """Wait for the end of the batch in a task, unless one does already."""
        if self.watch is None or self.watch.done():
            self.watch = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        try:
            ended = await self.wire.ended(str(self.note.batch_id))
            while self.requests:
                # Those that join while the files are read may have missed their line.
                before = list(self.requests)
                for file_id in ended.file_ids:
                    async for row in self.wire.lines(file_id):
                        self._answer(str(row.get("custom_id")), row)
                missing = RequestFailed(ended.end_failure())
                for custom_id in before:
                    self._answer(custom_id, missing)
        # Whatever it is, the waiting requests must get it.
        except Exception as error:
            for custom_id in list(self.requests):
                self._answer(custom_id, error)
            return
        _LOG.info("batch %s: %s, %d answers", ended.id, ended.status, len(self.answered))

    def _answer(self, custom_id: str, result: JsonObject | Exception) -> None:
        """End one request's wait; the answer to a cancelled one is left for the next run."""
        request = self.requests.pop(custom_id, None)
        if request is None or request.answer.done():
            return
        self.answered.add(custom_id)
        if isinstance(result, Exception):
            request.fail(result)
        else:
            request.answer.set_result(result)
