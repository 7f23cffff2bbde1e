"""The path through a batch endpoint, OpenAI's or Anthropic's: half the price, answers within a day, one turn a rollout.

Requests are gathered until none has arrived for a moment, sent as one batch, and answered all at once when it has ended
(https://platform.openai.com/docs/guides/batch). Nothing is paid for twice: a note on disk lists the requests before a
batch exists, and a run that was killed attaches to the batches of its notes. A request is known by a digest of its
body; of requests equal to the last byte (samples without a seed) any takes the answer of any.

Use one client for as many requests as possible, and send them all at once: a request that waits here takes no
connection.
"""

import asyncio
import hashlib
import logging
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson

from stillhouse.config import ModelRole, RolloutsConfig, TeacherConfig, ToolsConfig
from stillhouse.errors import ConfigError
from stillhouse.inference.batch.message_batches import MessageBatches
from stillhouse.inference.batch.open_batches import BatchNotes, BatchRequest, OpenBatch
from stillhouse.inference.batch.wire import BatchEndpoint, BatchNote
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import RequestFailed
from stillhouse.inference.rate_limit import Caps, Controller, RateControl
from stillhouse.inference.transport import HttpAnswer
from stillhouse.store import exact_json

_LOG = logging.getLogger(__name__)
MAX_REQUESTS: Final = 50_000
"""Requests of one batch at OpenAI (https://platform.openai.com/docs/guides/batch), hence how many to send at once."""
_MAX_BYTES: Final = 200_000_000


@dataclass(frozen=True, slots=True)
class BatchPace:
    gather_s: float = 5.0
    """Seconds without a new request after which a batch is sent."""
    poll_s: float = 30.0
    """Seconds between two polls of a batch."""
    max_requests: int = MAX_REQUESTS
    max_bytes: int = _MAX_BYTES


class BatchClient:
    """A `Transport` over a batch endpoint, at the price of a batch. Make and use it inside one running event loop.

    `folder` keeps the notes of open batches; it is the same for every run that shares a journal.
    """

    def __init__(self, endpoint: Endpoint, folder: Path, *, pace: BatchPace | None = None) -> None:
        self._endpoint = endpoint
        self._notes = BatchNotes(folder, endpoint.base_url, endpoint.model)
        self._pace = pace or BatchPace()
        wire = MessageBatches if endpoint.speaks_messages else BatchEndpoint
        self._wire: BatchEndpoint = wire(endpoint, poll_s=self._pace.poll_s)
        self._gathered: list[BatchRequest] = []
        self._gathered_bytes = 0
        self._path = ""
        """That of the gathered requests."""
        self._timer: asyncio.TimerHandle | None = None
        self._open: list[OpenBatch] = []
        self._unclaimed: defaultdict[str, list[tuple[OpenBatch, str]]] = defaultdict(list)
        self._attaching = asyncio.Lock()
        self._is_attached = False
        self._submitting: set[asyncio.Task[None]] = set()

    async def post(self, path: str, body: object) -> HttpAnswer:
        """Return the answer once the request's batch has ended.

        Raise RequestFailed as its line, or the end of its batch, says, StoreError if the note of a batch cannot be
        written; it is then not sent.
        """
        started = time.monotonic()
        async with self._attaching:
            if not self._is_attached:
                await self._attach()
        content = exact_json.dumps(body, option=orjson.OPT_SORT_KEYS)
        digest = hashlib.sha256(content).hexdigest()[:40]
        request = BatchRequest(digest, content, asyncio.get_running_loop().create_future())
        if held := self._unclaimed.get(digest):
            # An open batch of an earlier run holds an equal request.
            batch, custom_id = held.pop(0)
            batch.requests[custom_id] = request
            batch.follow()
        else:
            self._gather(path, request)
        row = await request.answer
        return self._wire.answer(row, latency_s=time.monotonic() - started)

    async def aclose(self) -> None:
        """Close the connections. Open batches go on; the next client attaches to them.

        Call it once all answers are durable: their notes are struck out here.
        """
        if self._timer is not None:
            self._timer.cancel()
        tasks = [*self._submitting, *(batch.watch for batch in self._open if batch.watch is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._wire.aclose()
        for batch in self._open:
            if batch.answered:
                self._notes.strike(batch.note, batch.answered)

    async def _attach(self) -> None:
        """Find the batches of earlier runs."""
        notes = list(self._notes.open())
        lost = {note.tag: note for note in notes if note.batch_id is None}
        if lost:
            ids = await self._wire.find(list(lost.values()), {note.batch_id for note in notes if note.batch_id})
            notes = [self._notes.with_id(note, ids[note.tag]) if note.tag in ids else note for note in notes]
        # Nothing is waited for from here on, so that a caller that is cancelled leaves nothing half done.
        self._is_attached = True
        for note in notes:
            if note.batch_id is None:
                # It was never created, or another process is about to create it; the note expires.
                continue
            batch = OpenBatch(self._wire, note)
            self._open.append(batch)
            for custom_id in note.custom_ids:
                self._unclaimed[custom_id.partition("-")[0]].append((batch, custom_id))
            _LOG.info("batch %s: holds up to %d answers of an earlier run", note.batch_id, len(note.custom_ids))

    def _gather(self, path: str, request: BatchRequest) -> None:
        size = len(request.body) + 200
        if self._gathered and (
            path != self._path
            or len(self._gathered) >= self._pace.max_requests
            or self._gathered_bytes + size > self._pace.max_bytes
        ):
            self._send_gathered()
        self._path = path
        self._gathered.append(request)
        self._gathered_bytes += size
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._pace.gather_s, self._send_gathered)

    def _send_gathered(self) -> None:
        # Requests that were cancelled before anything was sent cost nothing.
        requests = [request for request in self._gathered if not request.answer.done()]
        self._gathered, self._gathered_bytes = [], 0
        if requests:
            task = asyncio.create_task(self._submit(self._path, requests))
            self._submitting.add(task)
            task.add_done_callback(self._submitting.discard)

    async def _submit(self, path: str, requests: list[BatchRequest]) -> None:
        by_id = {f"{request.digest}-{index}": request for index, request in enumerate(requests)}
        note: BatchNote | None = None
        try:
            note = self._notes.add(tuple(by_id))
            bodies = {custom_id: request.body for custom_id, request in by_id.items()}
            known = {open_note.batch_id for open_note in self._notes.open() if open_note.batch_id}
            batch_id = await self._wire.create(note, path, bodies, known)
            batch = OpenBatch(self._wire, self._notes.with_id(note, batch_id), by_id)
        # Whatever it is, the waiting requests must get it.
        except Exception as error:
            status = error.failure.status if isinstance(error, RequestFailed) else None
            if note is not None and status is not None and status < 500:
                self._notes.strike(note, set(note.custom_ids))
            for request in requests:
                request.fail(error)
            return
        _LOG.info("batch %s: created with %d completions of %s", batch_id, len(by_id), self._endpoint.model)
        self._open.append(batch)
        batch.follow()


def batch_controller() -> Controller:
    """Return a controller that admits everything at once: a batch endpoint has a queue and limits of its own.

    A batch refused for too many tokens in that queue still shuts the gate.
    """
    return Controller(RateControl(MAX_REQUESTS, Caps(MAX_REQUESTS)))


def require_batchable(
    teacher: TeacherConfig, rollouts: RolloutsConfig, tools: ToolsConfig, role: ModelRole = ModelRole.TEACHER
) -> None:
    """Raise ConfigError if `teacher.batch` is set and rollouts take more than one turn, or may not wait for hours.

    The message names every such field.
    """
    if not teacher.batch:
        return
    against = []
    if teacher.base_url is None:
        against.append(f"{role.section}.base_url is not set: a model served by this machine has no batch endpoint")
    for field in ("builtin", "file", "mcp"):
        if value := getattr(tools, field):
            against.append(f"tools.{field} is {value!r}: a rollout with tools takes several turns")
    if rollouts.response_schema and rollouts.max_corrections > 0:
        against.append(
            f"rollouts.max_corrections is {rollouts.max_corrections} with a rollouts.response_schema: set it to 0"
        )
    if rollouts.timeout_s is not None:
        against.append(f"rollouts.timeout_s is {rollouts.timeout_s:g}: a batch may take 24 hours; leave it out")
    if against:
        raise ConfigError(
            f"{role.section}.batch asks for one turn a rollout, but {'; '.join(against)}. Change these, or set "
            f"{role.section}.batch to false"
        )
