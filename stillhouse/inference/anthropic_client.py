"""The `anthropic` package as the client of Anthropic's own API: it writes and signs requests, each sent once.

Beneath it is the plain client, so that bodies are bounded, keys taken out, redirects refused and failures told apart in
one place, before the package sees an answer.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import anthropic
import httpx2

from stillhouse.http.bodies import ACCEPT_ENCODING, MAX_ANSWER_BYTES
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.inference.http_client import HttpClient
from stillhouse.inference.transport import HttpAnswer
from stillhouse.store import exact_json

_ANSWER: Final = "stillhouse.answer"


class AnthropicClient:
    """A `Transport` over the `anthropic` package, made as `HttpClient` is; it also reads, as batches need."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        max_bytes: int = MAX_ANSWER_BYTES,
        timeout_setting: str | None = "runtime.request_timeout_s",
    ) -> None:
        self._http = HttpClient(
            endpoint, timeout_s=timeout_s, clock=clock, max_bytes=max_bytes, timeout_setting=timeout_setting
        )
        self._sdk = anthropic.AsyncAnthropic(
            api_key=endpoint.api_key,
            base_url=endpoint.base_url,
            max_retries=0,
            timeout=timeout_s,
            open_telemetry=False,
            http_client=httpx2.AsyncClient(
                transport=_Session(self._http), headers={"Accept-Encoding": ACCEPT_ENCODING}, trust_env=False
            ),
        )

    async def post(self, path: str, body: object) -> HttpAnswer:
        """Return the answer to one POST of `body` to `path`, below `base_url`; raise RequestFailed for any other."""
        return await self._answer(self._sdk.post(path, cast_to=httpx2.Response, content=exact_json.dumps(body)))

    async def get(self, path: str, **query: str) -> HttpAnswer:
        """Return as `post` does, for a GET."""
        return await self._answer(self._sdk.get(path, cast_to=httpx2.Response, options={"params": query}))

    async def lines(self, path: str) -> AsyncIterator[bytes]:
        """Yield the lines of a file of any length as `HttpClient.lines` does."""
        version = "anthropic-version"
        async for line in self._http.lines(path, {version: str(self._sdk.default_headers[version])}):
            yield line

    async def aclose(self) -> None:
        await self._sdk.close()
        await self._http.aclose()

    async def _answer(self, request: Awaitable[httpx2.Response]) -> HttpAnswer:
        try:
            answer: HttpAnswer = (await request).extensions[_ANSWER]
        except anthropic.APIConnectionError as error:
            if isinstance(error.__cause__, RequestFailed):
                raise error.__cause__ from None
            message = f"{error.message} {error.__cause__ or ''}".strip()
            raise RequestFailed(Failure(FailureKind.TRANSIENT, message, unreachable=True)) from None
        return answer


class _Session(httpx2.AsyncBaseTransport):
    """Sends the package's requests through the plain client, and fails as that does."""

    def __init__(self, http: HttpClient) -> None:
        self._http = http

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        answer = await self._http.send(
            request.method, str(request.url), headers=request.headers, data=request.content or None
        )
        return httpx2.Response(200, content=answer.content, extensions={_ANSWER: answer})
