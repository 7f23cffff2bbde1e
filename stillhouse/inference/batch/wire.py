"""The batch endpoint as one external system: files, batches, answers, and failures in the engine's words."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import orjson

from stillhouse.http.bodies import ACCEPT_ENCODING
from stillhouse.http.keys import KeyRedactor
from stillhouse.inference.completion import Completion, read_completion
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed, classify
from stillhouse.types import JsonObject

if TYPE_CHECKING:
    import httpx2
    from openai.types import Batch

_RATE_CODES: Final = frozenset({"token_limit_exceeded", "rate_limit_exceeded"})
_KIND_BY_CODE: Final = {"batch_expired": FailureKind.TRANSIENT, "batch_cancelled": FailureKind.PERMANENT}
"""A batch that somebody cancelled is not to be sent again."""
_RETRY_S: Final = 60.0
"""Wait before a batch that was too large for the queue is sent again; the endpoint gives no hint."""
_LOG = logging.getLogger(__name__)
_ENDED: Final = frozenset({"completed", "failed", "expired", "cancelled"})
_PASSING: Final = frozenset({FailureKind.RATE, FailureKind.TRANSIENT, FailureKind.STALL})
_TAG: Final = "stillhouse"
"""The key of a batch's metadata that holds its tag."""
_LISTED_BACK_S: Final = 86_400.0
"""How far the endpoint's clock and ours may be apart."""


async def lines_of(chunks: AsyncIterator[bytes]) -> AsyncIterator[JsonObject]:
    """The objects of a JSONL file that arrives in pieces, without lines that are no JSON object."""
    # Split at line feeds alone: an answer may hold other characters that `splitlines` splits at.
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if (row := _parsed(line)) is not None:
                yield row
    if (row := _parsed(rest)) is not None:
        yield row


def read_answer(row: JsonObject, endpoint: Endpoint, *, latency_s: float, record_tokens: bool) -> Completion:
    """The completion in one line of a batch's output or error file.

    Args:
        row: the line.
        endpoint: whose price is that of a batch.
        latency_s: seconds from request to answer.
        record_tokens: whether token ids were requested.

    Raises:
        RequestFailed: there is none in it.
    """
    response = row.get("response")
    if not isinstance(response, dict):
        raise RequestFailed(_line_failure(row.get("error")))
    status, body = response.get("status_code"), response.get("body")
    headers = {"x-request-id": str(response["request_id"])} if response.get("request_id") else {}
    if status != 200:
        status = status if isinstance(status, int) else 500
        raise RequestFailed(classify(status, headers, body, datetime.now(UTC)))
    completion = read_completion(
        orjson.dumps(body), headers, latency_s=latency_s, model=endpoint.model, record_tokens=record_tokens
    )
    return replace(completion, turn=endpoint.with_cost(completion.turn))


def end_failure(batch: "Batch") -> Failure:
    """Why a request has no answer although its batch has ended."""
    if batch.status == "cancelled":
        message = f"batch {batch.id} was cancelled at the endpoint. Run the same command again to ask for the rest anew"
        return Failure(FailureKind.PERMANENT, message)
    faults = batch.errors.data if batch.errors is not None else None
    if not faults:
        message = f"batch {batch.id} ended as {batch.status!r} without an answer to this request"
        return Failure(FailureKind.TRANSIENT, message)
    error = {"code": faults[0].code, "message": faults[0].message}
    failure = classify(429 if faults[0].code in _RATE_CODES else 400, {}, {"error": error}, datetime.now(UTC))
    message = f"batch {batch.id} {batch.status}: {faults[0].message} ({faults[0].code})"
    wait_s = _RETRY_S if failure.kind is FailureKind.RATE else None
    return replace(failure, message=message, status=None, retry_after_s=wait_s)


def _line_failure(error: Any) -> Failure:
    """The failure of a request that the endpoint did not process."""
    error = error if isinstance(error, dict) else {}
    if (code := error.get("code")) in _KIND_BY_CODE:
        return Failure(_KIND_BY_CODE[code], f"the batch ended first: {error.get('message') or code}")
    return classify(500, {}, {"error": error}, datetime.now(UTC))


def _parsed(line: bytes) -> JsonObject | None:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return row if isinstance(row, dict) else None


class BatchEndpoint:
    """Batches of chat completions at one endpoint, through the `openai` package.

    Args:
        endpoint: the endpoint that is asked.
        poll_s: seconds between two polls of a batch, and before a poll that failed is repeated.
        sleep: waits so many seconds.
    """

    def __init__(self, endpoint: Endpoint, *, poll_s: float, sleep: Callable[[float], Awaitable[None]]) -> None:
        # The openai package takes a second to import, which no command that asks nobody should wait for.
        import openai

        from stillhouse.http.hooks import guard_answers

        self._redactor = KeyRedactor(endpoint.api_key)
        self._poll_s = poll_s
        self._sleep = sleep
        self._client = openai.AsyncOpenAI(
            base_url=endpoint.base_url,
            api_key=endpoint.api_key,
            http_client=openai.DefaultAsyncHttpxClient(
                headers={"Accept-Encoding": ACCEPT_ENCODING},
                event_hooks={"response": [guard_answers(self._redactor, is_stream=_is_file)]},
                trust_env=endpoint.may_use_proxy,
            ),
        )

    async def create(self, tag: str, lines: bytes, *, since: float) -> str:
        """The id of a new batch.

        Args:
            tag: goes into the batch's metadata.
            lines: its input file.
            since: when the tag was made, in seconds since 1970.

        Raises:
            RequestFailed: there is none, or it is not known whether there is.
        """
        import openai

        try:
            file = await self._client.files.create(file=(f"{tag}.jsonl", lines), purpose="batch")
        except openai.APIError as error:
            raise RequestFailed(self._failure(error)) from None
        try:
            # Without retries: the first attempt may have created the batch, and a second one would be billed as well.
            batch = await self._client.with_options(max_retries=0).batches.create(
                input_file_id=file.id,
                endpoint="/v1/chat/completions",
                completion_window="24h",
                metadata={_TAG: tag},
            )
        except openai.APIError as error:
            failure = self._failure(error)
            if failure.kind is FailureKind.TRANSIENT:
                ids = await self.find({tag}, since=since)
                if tag in ids:
                    return ids[tag]
            raise RequestFailed(failure) from None
        return batch.id

    async def find(self, tags: Collection[str], *, since: float) -> dict[str, str]:
        """Ids of the batches that carry one of `tags`, created since then.

        Raises:
            RequestFailed: the endpoint does not list its batches.
        """
        import openai

        ids: dict[str, str] = {}
        try:
            async for batch in self._client.batches.list(limit=100):
                tag = (batch.metadata or {}).get(_TAG)
                if tag is not None and tag in tags:
                    ids[tag] = batch.id
                if len(ids) == len(tags) or batch.created_at < since - _LISTED_BACK_S:
                    break
        except openai.APIError as error:
            raise RequestFailed(self._failure(error)) from None
        return ids

    async def ended(self, batch_id: str) -> "Batch":
        """The batch once it has ended.

        Raises:
            RequestFailed: the endpoint does not know it, or refuses the key.
        """
        import openai

        while True:
            # Before the first poll as well: requests join the batch of an earlier run one after the other.
            await self._sleep(self._poll_s)
            try:
                current = await self._client.batches.retrieve(batch_id)
            except openai.APIError as error:
                failure = self._failure(error)
                if failure.status == 404:
                    message = f"batch {batch_id} is not known there any more; its requests are sent again"
                    raise RequestFailed(Failure(FailureKind.TRANSIENT, message, 404)) from error
                if failure.kind not in _PASSING:
                    raise RequestFailed(failure) from None
                _LOG.warning("batch %s: cannot be polled for now: %s", batch_id, failure.message)
                continue
            if current.status in _ENDED:
                return current

    async def lines(self, file_id: str) -> AsyncIterator[JsonObject]:
        """The lines of a file; from its first line again where the connection is lost on the way.

        Raises:
            RequestFailed: the endpoint does not give it out.
        """
        import httpx2
        import openai

        while True:
            try:
                async with self._client.files.with_streaming_response.content(file_id) as file:
                    async for row in lines_of(file.iter_bytes()):
                        yield row
                return
            except (openai.APIError, httpx2.HTTPError) as error:
                failure = self._failure(error)
                if failure.kind not in _PASSING:
                    raise RequestFailed(failure) from None
                _LOG.warning("file %s: cannot be read for now: %s", file_id, failure.message)
                await self._sleep(self._poll_s)

    def _failure(self, error: Exception) -> Failure:
        """The failure without the key; it is raised without its cause, which may hold the key as it came."""
        failure = _failure(error)
        return replace(failure, message=self._redactor.text(failure.message))

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._client.close()


def _is_file(response: "httpx2.Response") -> bool:
    """Whether it is a batch's file of answers, which may be large and is read line by line."""
    return response.is_success and response.request.url.path.endswith("/content")


def _failure(error: Exception) -> Failure:
    """The failure in an exception of the package or of its HTTP library."""
    import openai

    if isinstance(error, openai.APIStatusError):
        headers = {name.lower(): value for name, value in error.response.headers.items()}
        return classify(error.status_code, headers, {"error": error.body}, datetime.now(UTC))
    unreachable = type(error.__cause__).__name__ in ("ConnectError", "ConnectTimeout")
    message = f"{error or type(error).__name__} {error.__cause__ or ''}".strip()
    return Failure(FailureKind.TRANSIENT, message, unreachable=unreachable)
