"""Admission of requests: API key, size and number of them; abandons those whose client has gone."""

import asyncio
import math
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stillhouse.serving.generation import Generation
from stillhouse.serving.protocol import ApiError
from stillhouse.serving.worker import ModelWorker

T = TypeVar("T")

MAX_BODY_BYTES: Final = 32 * 2**20
"""64 prompts of 32,768 token ids are 14 MiB of JSON."""
_OPEN_PATH: Final = "/health"
_COUNTED: Final = (
    *("requests_accepted", "requests_completed", "requests_abandoned"),
    *("prompt_tokens", "completion_tokens"),
)


class ClientGone(Exception):
    """The client closed its connection before the answer."""


class AdmissionController:
    """Limits and counts the requests to one worker; runs on the server's event loop.

    `max_batch` sequences run at once and `max_pending` may wait; more are refused with 429.
    """

    def __init__(self, worker: ModelWorker, *, max_batch: int, max_pending: int) -> None:
        self.worker = worker
        self._max_admitted = max_batch + max_pending
        self._num_admitted = 0
        self._mean_latency_s = 0.0
        self._counts: Counter[str] = Counter()
        self._rejected: Counter[str] = Counter()

    @asynccontextmanager
    async def admitted(self, num_sequences: int) -> AsyncIterator[None]:
        """Hold places for sequences inside the block; answer 429 if too many are waiting."""
        if self._num_admitted + num_sequences > self._max_admitted and self._num_admitted:
            # Half of the mean time to answer: by then a place is free on average.
            wait_s = max(0.05, self._mean_latency_s / 2)
            raise ApiError(
                429,
                f"{self._num_admitted} completions are running or waiting, at most {self._max_admitted} may; "
                f"try again in {wait_s:.2f} s",
                code="rate_limit_exceeded",
                headers={"Retry-After": str(math.ceil(wait_s)), "Retry-After-Ms": str(round(1000 * wait_s))},
            )
        self._counts["requests_accepted"] += 1
        self._num_admitted += num_sequences
        start = time.monotonic()
        try:
            yield
        finally:
            self._num_admitted -= num_sequences
            self._mean_latency_s += 0.1 * (time.monotonic() - start - self._mean_latency_s)

    async def wait_all(self, request: Request, futures: Sequence["Future[T]"]) -> list[T]:
        """Return the results of the futures in order; abandon them and raise ClientGone if the client leaves."""
        results = asyncio.gather(*(asyncio.wrap_future(future) for future in futures))
        disconnect: asyncio.Future[None] = asyncio.ensure_future(_wait_for_disconnect(request))
        awaited: set[asyncio.Future[Any]] = {results, disconnect}
        try:
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            if results.done():
                return results.result()
            raise ClientGone
        finally:
            disconnect.cancel()
            with suppress(asyncio.CancelledError):
                await disconnect
            if not results.done():
                results.cancel()
                with suppress(asyncio.CancelledError):
                    await results
                self._counts["requests_abandoned"] += 1
                for future in futures:
                    self.worker.abandon(future)

    def count_answer(self, generations: Sequence[Generation], *prompts: Sequence[int]) -> dict[str, int]:
        num_prompt = sum(map(len, prompts))
        num_completion = sum(len(generation.completion_ids) for generation in generations)
        self._counts.update(requests_completed=1, prompt_tokens=num_prompt, completion_tokens=num_completion)
        total = num_prompt + num_completion
        return {"prompt_tokens": num_prompt, "completion_tokens": num_completion, "total_tokens": total}

    def count_rejection(self, status: int) -> None:
        self._rejected[str(status)] += 1

    def stats(self) -> dict[str, Any]:
        """Return counters since the start, for /v1/stats."""
        return {name: self._counts[name] for name in _COUNTED} | {
            "requests_rejected": dict(self._rejected),
            "sequences_inside": self._num_admitted,
        }


class RequestGuard:
    """ASGI middleware that answers 401 without the API key and 413 to too long a body, before reading it whole.

    `app` gets the body in full. `api_key` None asks for none; `/health` never needs one. `on_reject` is called with the
    HTTP status of each refusal.
    """

    def __init__(self, app: ASGIApp, api_key: str | None, on_reject: Callable[[int], None]) -> None:
        self._app = app
        self._expected = None if api_key is None else f"Bearer {api_key}".encode()
        self._on_reject = on_reject

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            headers = Headers(scope=scope)
            self._check_key(scope["path"], headers)
            messages = await self._body(headers, receive)
        except ApiError as error:
            self._on_reject(error.status)
            await JSONResponse(error.body, error.status, headers=error.headers)(scope, receive, send)
            return
        pending = iter(messages)

        async def receive_again() -> Message:
            return next(pending, None) or await receive()

        await self._app(scope, receive_again, send)

    def _check_key(self, path: str, headers: Headers) -> None:
        sent = headers.get("authorization", "").encode()
        if self._expected and path != _OPEN_PATH and not secrets.compare_digest(sent, self._expected):
            problem = "the API key is missing or wrong; send 'Authorization: Bearer KEY'"
            raise ApiError(401, problem, code="invalid_api_key")

    async def _body(self, headers: Headers, receive: Receive) -> list[Message]:
        declared = headers.get("content-length", "")
        num_bytes, messages, more = 0, list[Message](), True
        while more:
            if num_bytes > MAX_BODY_BYTES or (declared.isdecimal() and int(declared) > MAX_BODY_BYTES):
                problem = f"the request's body has more than {MAX_BODY_BYTES} bytes; send fewer prompts in each request"
                raise ApiError(413, problem, code="request_too_large")
            message = await receive()
            messages.append(message)
            num_bytes += len(message.get("body", b""))
            more = message["type"] == "http.request" and message.get("more_body", False)
        return messages


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
