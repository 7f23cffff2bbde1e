"""The path through OpenAI's batch endpoint: half the price, an answer within 24 hours, one turn a rollout.

Requests are gathered until none has arrived for a moment, written as one JSONL file, uploaded, and answered all at
once when their batch has ended (https://platform.openai.com/docs/guides/batch). Nothing is paid for twice: a note on
disk lists the requests before a batch exists, and a run that was killed attaches to the batches of its notes. A request
is known by a digest of its body; of requests equal to the last byte (samples without a seed) any takes the answer of
any.

Use one client for as many requests as possible, and send them all at once: a request that waits here takes no
connection.
"""

import asyncio
import hashlib
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson

from stillhouse.inference.batch.open_batches import BatchNote, BatchNotes, BatchRequest, OpenBatch
from stillhouse.inference.batch.rules import MAX_REQUESTS
from stillhouse.inference.batch.wire import BatchEndpoint, read_answer
from stillhouse.inference.completion import Completion, Sampling, request_body
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import Failure, RequestFailed
from stillhouse.types import Message, ToolSchema

_LOG = logging.getLogger(__name__)
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
    """A `ChatClient` over a batch endpoint. Make and use it inside one running event loop.

    Args:
        endpoint: the endpoint that is asked, at the price of a batch (`Price.half`).
        folder: keeps the notes of open batches; the same for every run that shares a journal.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        folder: Path,
        *,
        pace: BatchPace | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._endpoint = endpoint
        self._notes = BatchNotes(folder, endpoint.base_url, endpoint.model)
        self._pace = pace or BatchPace()
        self._clock = clock
        self._wire = BatchEndpoint(endpoint, poll_s=self._pace.poll_s, sleep=sleep)
        self._gathered: list[BatchRequest] = []
        self._gathered_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._open: list[OpenBatch] = []
        self._unclaimed: defaultdict[str, list[tuple[OpenBatch, str]]] = defaultdict(list)
        self._attaching: asyncio.Task[None] | None = None
        self._submitting: set[asyncio.Task[None]] = set()

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], sampling: Sampling
    ) -> Completion:
        """See `ChatClient`; it returns when the request's batch has ended.

        Raises:
            RequestFailed: as the answer's line, or the end of its batch, says.
            StoreError: the note of a batch cannot be written; it is then not sent.
        """
        started = self._clock()
        await self._attached()
        body = orjson.dumps(request_body(self._endpoint, messages, tools, sampling), option=orjson.OPT_SORT_KEYS)
        digest = hashlib.sha256(body).hexdigest()[:40]
        request = BatchRequest(digest, body, asyncio.get_running_loop().create_future())
        if not self._claim(request):
            self._gather(request)
        row = await request.answer
        return read_answer(row, self._endpoint, latency_s=self._clock() - started, record_tokens=sampling.record_tokens)

    async def aclose(self) -> None:
        """Closes the connections. Open batches go on; the next client attaches to them.

        Call it once all answers are durable: their notes are struck out here.
        """
        if self._timer is not None:
            self._timer.cancel()
        tasks = [batch.watch for batch in self._open if batch.watch is not None]
        tasks += [task for task in (self._attaching, *self._submitting) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._wire.aclose()
        for batch in self._open:
            if batch.answered:
                self._notes.strike(batch.note, batch.answered)

    async def _attached(self) -> None:
        """Waits until the batches of earlier runs are known."""
        task = self._attaching
        if task is None or (task.done() and task.exception() is not None):
            task = self._attaching = asyncio.create_task(self._attach())
        # A caller that is cancelled must not cancel the others.
        await asyncio.shield(task)

    async def _attach(self) -> None:
        notes = list(self._notes.open())
        lost = {note.tag: note for note in notes if note.batch_id is None}
        if lost:
            ids = await self._wire.find(lost, since=min(note.created for note in lost.values()))
            notes = [self._notes.with_id(note, ids[note.tag]) if note.tag in ids else note for note in notes]
        for note in notes:
            if note.batch_id is None:
                # It was never created, or another process is about to create it; the note expires.
                continue
            batch = OpenBatch(self._wire, note)
            self._open.append(batch)
            for custom_id in note.custom_ids:
                self._unclaimed[custom_id.partition("-")[0]].append((batch, custom_id))
            _LOG.info("batch %s: holds up to %d answers of an earlier run", note.batch_id, len(note.custom_ids))

    def _claim(self, request: BatchRequest) -> bool:
        """Whether an open batch holds an equal, unclaimed request; it is then answered from there."""
        known = self._unclaimed.get(request.digest)
        if not known:
            return False
        batch, custom_id = known.pop(0)
        batch.join(custom_id, request)
        return True

    def _gather(self, request: BatchRequest) -> None:
        size = len(request.body) + 200
        if self._gathered and (
            len(self._gathered) >= self._pace.max_requests or self._gathered_bytes + size > self._pace.max_bytes
        ):
            self._send_gathered()
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
            task = asyncio.create_task(self._submit(requests))
            self._submitting.add(task)
            task.add_done_callback(self._submitting.discard)

    async def _submit(self, requests: list[BatchRequest]) -> None:
        by_id = {f"{request.digest}-{index}": request for index, request in enumerate(requests)}
        note: BatchNote | None = None
        try:
            note = self._notes.add(tuple(by_id))
            lines = b"".join(_line(custom_id, request.body) for custom_id, request in by_id.items())
            batch_id = await self._wire.create(note.tag, lines, since=note.created)
            batch = OpenBatch(self._wire, self._notes.with_id(note, batch_id), by_id)
        # Whatever it is, the waiting requests must get it.
        except Exception as error:
            if note is not None and isinstance(error, RequestFailed) and _is_refusal(error.failure):
                self._notes.strike(note, set(note.custom_ids))
            for request in requests:
                request.fail(error)
            return
        _LOG.info("batch %s: created with %d completions of %s", batch_id, len(by_id), self._endpoint.model)
        self._open.append(batch)
        batch.follow()


def _is_refusal(failure: Failure) -> bool:
    return failure.status is not None and failure.status < 500


def _line(custom_id: str, body: bytes) -> bytes:
    line = {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": orjson.Fragment(body)}
    return orjson.dumps(line) + b"\n"
