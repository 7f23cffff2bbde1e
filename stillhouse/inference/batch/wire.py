"""The batch endpoint as one external system: files, batches, answers, and failures in the engine's words.

OpenAI's here, in which the requests of a batch are a file; Anthropic's in `message_batches`.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, ClassVar, Final

import orjson

from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.error_body import classify
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.inference.retry import Effects, RetryPolicy, with_retries
from stillhouse.inference.transport import HttpAnswer, open_transport
from stillhouse.store import exact_json
from stillhouse.types import JsonObject

_RATE_CODES: Final = frozenset({"token_limit_exceeded", "rate_limit_exceeded"})
_KIND_BY_CODE: Final = {"batch_expired": FailureKind.TRANSIENT, "batch_cancelled": FailureKind.PERMANENT}
"""A batch that was cancelled is not to be sent again."""
_RETRY_S: Final = 60.0
"""Wait before a batch that was too large for the queue is sent again; the endpoint gives no hint."""
_LOG = logging.getLogger(__name__)
AGAIN: Final = "Run the same command again to request the rest again"
TIMEOUT_S: Final = 600.0
_RETRIES: Final = RetryPolicy(max_attempts=3, max_refused_s=60.0)
_ENDED: Final = frozenset({"completed", "failed", "expired", "cancelled"})
_PASSING: Final = frozenset({FailureKind.RATE, FailureKind.TRANSIENT, FailureKind.STALL})
_TAG: Final = "stillhouse"  # the key of a batch's metadata that holds its tag
_LISTED_BACK_S: Final = 86_400.0  # how far the endpoint's clock and ours may be apart


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch at the endpoint (https://platform.openai.com/docs/api-reference/batch/object)."""

    id: str
    status: str
    created: float
    """Seconds since 1970."""
    tag: str | None
    file_ids: tuple[str, ...]
    """Of answers and of errors."""
    errors: tuple[JsonObject, ...]
    """Of the batch, not of single requests."""
    num_requests: int | None = None

    def end_failure(self) -> Failure:
        """Return why a request has no answer although the batch has ended."""
        if self.status == "cancelled":
            message = f"batch {self.id} was cancelled at the endpoint. {AGAIN}"
            return Failure(FailureKind.PERMANENT, message)
        if not self.errors:
            message = f"batch {self.id} ended as {self.status!r} without an answer to this request"
            return Failure(FailureKind.TRANSIENT, message)
        error = self.errors[0]
        status = 429 if error.get("code") in _RATE_CODES else 400
        failure = classify(status, {}, {"error": error}, datetime.now(UTC))
        message = f"batch {self.id} {self.status}: {error.get('message')} ({error.get('code')})"
        wait_s = _RETRY_S if failure.kind is FailureKind.RATE else None
        return replace(failure, message=message, status=None, retry_after_s=wait_s)


@dataclass(frozen=True, slots=True)
class BatchNote:
    """What is kept on disk of a batch."""

    tag: str
    """In the batch's metadata, and the name of the note's file."""
    base_url: str
    model: str
    created: float
    """Seconds since 1970."""
    batch_id: str | None
    """None until the batch is created."""
    custom_ids: tuple[str, ...]
    """Of the requests that are not known to be answered."""


class BatchEndpoint:
    """Batches at one endpoint, polled every `poll_s`. Make it inside a running event loop."""

    batches: ClassVar[str] = "batches"
    """Path of batches."""
    next_page: ClassVar[str] = "after"
    """Parameter of a list that names the last batch of the page before."""
    results: ClassVar[str] = "files/{}/content"
    """Path of a file of answers."""

    def __init__(self, endpoint: Endpoint, *, poll_s: float) -> None:
        self._poll_s = poll_s
        self._client = open_transport(endpoint, timeout_s=TIMEOUT_S, timeout_setting=None)

    async def create(self, note: BatchNote, path: str, bodies: Mapping[str, bytes], known: Set[str]) -> str:
        """Return the id of a new batch of requests to `path`, whose bodies are by custom id.

        `known` are ids of batches that belong to other notes. Raise RequestFailed if there is none, or it is not known
        whether there is.
        """
        request = await self.make(note.tag, path, bodies)
        try:
            # Without retries: the first attempt may have created the batch, and a second one would be billed as well.
            return self._read((await self._client.post(self.batches, request)).body()).id
        except RequestFailed as failed:
            if failed.failure.kind in (FailureKind.TRANSIENT, FailureKind.STALL):
                ids = await self.find([note], known)
                if note.tag in ids:
                    return ids[note.tag]
            raise

    async def find(self, notes: Sequence[BatchNote], known: Set[str]) -> dict[str, str]:
        """Return the ids of the notes' batches, by tag; raise RequestFailed if batches are not listed.

        `known` are ids of batches that belong to other notes.
        """
        ids: dict[str, str] = {}
        async for batch in self._listed(since=min(note.created for note in notes)):
            for note in notes:
                if note.tag not in ids and batch.id not in known and await self.is_of(batch, note):
                    ids[note.tag] = batch.id
                    break
            if len(ids) == len(notes):
                break
        return ids

    async def ended(self, batch_id: str) -> Batch:
        """Return the batch once it has ended; raise RequestFailed if it is unknown there, or the key is refused."""
        while True:
            # Before the first poll as well: requests join the batch of an earlier run one after the other.
            await asyncio.sleep(self._poll_s)
            try:
                batch = self._read((await self._client.get(f"{self.batches}/{batch_id}")).body())
            except RequestFailed as failed:
                if failed.failure.status == 404:
                    message = f"batch {batch_id} is not known there any more; its requests are sent again"
                    raise RequestFailed(Failure(FailureKind.TRANSIENT, message, 404)) from failed
                if failed.failure.kind not in _PASSING:
                    raise
                _LOG.warning("batch %s: cannot be polled for now: %s", batch_id, failed.failure.message)
                continue
            if batch.status in _ENDED:
                return batch

    async def lines(self, file_id: str) -> AsyncGenerator[JsonObject, None]:
        """Yield the objects of a JSONL file, without lines that are none; from the first again if the connection is
        lost.

        Raise RequestFailed if the endpoint does not give it out.
        """
        while True:
            try:
                async for line in self._client.lines(self.results.format(file_id)):
                    with suppress(orjson.JSONDecodeError):
                        row = exact_json.loads(line)
                        if isinstance(row, dict):
                            yield row
                return
            except RequestFailed as failed:
                if failed.failure.kind not in _PASSING:
                    raise
                _LOG.warning("file %s: cannot be read for now: %s", file_id, failed.failure.message)
                await asyncio.sleep(self._poll_s)

    async def aclose(self) -> None:
        await self._client.aclose()

    def answer(self, row: JsonObject, *, latency_s: float) -> HttpAnswer:
        """Return the answer in a line of a batch's files; raise RequestFailed if it has no HTTP 200."""
        response = row.get("response")
        if not isinstance(response, dict):
            # The endpoint did not process the request.
            error = row["error"] if isinstance(row.get("error"), dict) else {}
            if (code := error.get("code")) in _KIND_BY_CODE:
                message = f"the batch ended first: {error.get('message') or code}"
                raise RequestFailed(Failure(_KIND_BY_CODE[code], message))
            raise RequestFailed(classify(500, {}, {"error": error}, datetime.now(UTC)))
        status, body = response.get("status_code"), response.get("body")
        headers = {"x-request-id": str(response["request_id"])} if response.get("request_id") else {}
        if status != 200:
            status = status if isinstance(status, int) else 500
            raise RequestFailed(classify(status, headers, body, datetime.now(UTC)))
        return HttpAnswer(exact_json.dumps(body), headers, latency_s)

    def parsed(self, body: Any) -> Batch:
        """Return the batch in an answer; raise any error where it is none."""
        file_ids = (body.get("output_file_id"), body.get("error_file_id"))
        return Batch(
            str(body["id"]),
            str(body["status"]),
            float(body.get("created_at") or 0.0),
            (body.get("metadata") or {}).get(_TAG),
            tuple(str(file_id) for file_id in file_ids if file_id is not None),
            tuple(error for error in (body.get("errors") or {}).get("data") or () if isinstance(error, dict)),
        )

    async def make(self, tag: str, path: str, bodies: Mapping[str, bytes]) -> JsonObject:
        """Return the request that creates a batch, once its file is uploaded."""
        url = f"/v1/{path}"
        lines = b"".join(
            exact_json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": orjson.Fragment(body)})
            + b"\n"
            for custom_id, body in bodies.items()
        )
        file = await self._retried(lambda: self._client.upload("files", f"{tag}.jsonl", lines, purpose="batch"))
        if not isinstance(file, dict) or "id" not in file:
            message = f"the answer is no file: {str(file)[:200]}"
            raise RequestFailed(Failure(FailureKind.TRANSIENT, message, 200))
        made = {"input_file_id": file["id"], "endpoint": url, "completion_window": "24h"}
        return {**made, "metadata": {_TAG: tag}}

    async def is_of(self, batch: Batch, note: BatchNote) -> bool:
        """Return whether a listed batch is that of a note which has no id yet."""
        return batch.tag == note.tag

    def _read(self, body: Any) -> Batch:
        try:
            return self.parsed(body)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            message = f"the answer is no batch: {str(body)[:200]}"
            raise RequestFailed(Failure(FailureKind.TRANSIENT, message, 200)) from error

    async def _listed(self, *, since: float) -> AsyncIterator[Batch]:
        """Yield the batches since then, the latest first."""
        query = {"limit": "100"}
        while True:
            page = await self._retried(lambda: self._client.get(self.batches, **query))
            rows = page.get("data") if isinstance(page, dict) else None
            batches = [self._read(row) for row in rows] if isinstance(rows, list) else []
            for batch in batches:
                if batch.created < since - _LISTED_BACK_S:
                    return
                yield batch
            if not batches or page.get("has_more") is False:
                return
            query[self.next_page] = batches[-1].id

    async def _retried(self, request: Callable[[], Awaitable[HttpAnswer]]) -> Any:
        return (await with_retries(request, _RETRIES, Effects())).body()
