"""The `openai` package as the client of hosted endpoints: it writes and signs requests, and sends each of them once.

Beneath it is the session of the plain client, so that bodies are bounded, keys taken out and failures told apart in one
place, before the package sees an answer. Its own transport over aiohttp takes as much CPU, calls a reset connection a
time-out to connect, bounds no whole answer and keeps cookies; its default one refuses to start beside a SOCKS proxy.
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import httpx2
import openai
import yarl

from stillhouse.http.bodies import ACCEPT_ENCODING, MAX_ANSWER_BYTES
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.inference.http_client import HttpClient
from stillhouse.inference.transport import HttpAnswer, answered, refusal
from stillhouse.store import exact_json

_JSON: Final[Mapping[str, str]] = {"Content-Type": "application/json"}
_RAW: Final = "X-Stainless-Raw-Response"
"""With `stream` in this header the package hands out an answer before its body is there."""
_TOKEN_END: Final = 64
"""Characters of a signature without which a token is worthless."""
_LEFT_OUT: Final = ("content-encoding", "content-length", "set-cookie")
"""Headers of the body as it came, and what httpx2 would send back."""


class OpenAIClient:
    """An `HttpTransport` over the `openai` package, made as `HttpClient` is. Make it inside a running event loop.

    Organisation, project and further headers come from the variables that the package reads.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        max_bytes: int = MAX_ANSWER_BYTES,
        timeout_setting: str | None = "runtime.request_timeout_s",
    ) -> None:
        self._clock = clock
        # The session has no key of its own, which would be sent wherever a redirect leads.
        keyless = replace(endpoint, api_key="")
        self._http = HttpClient(keyless, timeout_s=timeout_s, max_bytes=max_bytes, timeout_setting=timeout_setting)
        self._http.redact(endpoint.api_key)
        token = endpoint.token
        self._sdk = openai.AsyncOpenAI(
            api_key=endpoint.api_key if token is None else lambda: self._redacted(token),
            base_url=endpoint.base_url,
            timeout=timeout_s,
            max_retries=0,
            http_client=httpx2.AsyncClient(
                transport=_Session(self._http), headers={"Accept-Encoding": ACCEPT_ENCODING}, trust_env=False
            ),
        )

    async def post(self, path: str, body: object) -> HttpAnswer:
        """Return the answer to one POST of `body` to `path`, below `base_url`; raise RequestFailed for any other."""
        content = exact_json.dumps(body)
        return await self._ask(
            self._sdk.post(path, cast_to=httpx2.Response, content=content, options={"headers": _JSON})
        )

    async def get(self, path: str, **query: str) -> HttpAnswer:
        """Return as `post` does, for a GET."""
        return await self._ask(self._sdk.get(path, cast_to=httpx2.Response, options={"params": query}))

    async def upload(self, path: str, name: str, content: bytes, **fields: str) -> HttpAnswer:
        """Return as `post` does, for a form with a file; `timeout_s` bounds each wait, not the whole upload."""
        return await self._ask(
            self._sdk.post(
                path,
                cast_to=httpx2.Response,
                body=fields,
                files={"file": (name, content)},
                options={"headers": {"Content-Type": "multipart/form-data"}},
            )
        )

    async def lines(self, path: str) -> AsyncIterator[bytes]:
        """Yield the lines of a file of any length as `HttpClient.lines` does."""
        request = self._sdk.get(
            path, cast_to=httpx2.Response, options={"headers": {_RAW: "stream"}, "follow_redirects": True}
        )
        response = await self._response(request)
        try:
            if response.status_code != 200:
                raise RequestFailed(refusal(response.status_code, response.headers, await response.aread()))
            async for chunk in response.aiter_raw():
                for line in chunk.removesuffix(b"\n").split(b"\n"):
                    yield line
        finally:
            await response.aclose()

    async def aclose(self) -> None:
        await self._sdk.close()
        await self._http.aclose()

    async def _ask(self, request: Awaitable[httpx2.Response]) -> HttpAnswer:
        started = self._clock()
        response = await self._response(request)
        return answered(response.status_code, response.headers, response.content, self._clock() - started)

    async def _response(self, request: Awaitable[httpx2.Response]) -> httpx2.Response:
        """Return the answer, be it a refusal; raise RequestFailed if there is none."""
        try:
            return await request
        except openai.APIStatusError as error:
            return error.response
        except openai.APIConnectionError as error:
            # What failed on the way is a RequestFailed already; this is an address that cannot be asked.
            message = f"{error.message} {error.__cause__ or ''}".strip()
            raise RequestFailed(Failure(FailureKind.TRANSIENT, message, unreachable=True)) from None

    async def _redacted(self, token: Callable[[], Awaitable[str]]) -> str:
        """Return a token, whose end is taken out of answers from now on: the pattern of all of it takes seconds."""
        key = await token()
        self._http.redact(key[-_TOKEN_END:])
        return key


class _Session(httpx2.AsyncBaseTransport):
    """Sends the package's requests through the session of the plain client."""

    def __init__(self, http: HttpClient) -> None:
        self._http = http

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        url = yarl.URL(str(request.url), encoded=True)
        sent: dict[str, Any] = {"headers": request.headers}
        if request.headers.get(_RAW) == "stream":
            chunks = self._http.stream(request.method, url, allow_redirects=False, **sent)
            status, headers = await anext(chunks)
            return httpx2.Response(status, headers=_plain(headers), stream=_Chunks(chunks))
        if isinstance(request.stream, httpx2.ByteStream):
            sent["data"] = request.content
        else:
            sent |= {"data": request.stream, "timeout": self._http.long_timeout}
        status, headers, content = await self._http.exchange(request.method, url, **sent)
        return httpx2.Response(status, headers=_plain(headers), content=content)


class _Chunks(httpx2.AsyncByteStream):
    def __init__(self, chunks: AsyncGenerator[bytes, None]) -> None:
        self._chunks = chunks

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._chunks

    async def aclose(self) -> None:
        await self._chunks.aclose()


def _plain(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Return the headers of a decoded body in bytes, as a server may write others than ASCII."""
    kept = [(name, value) for name, value in headers.items() if name.lower() not in _LEFT_OUT]
    return [(name.encode(), value.encode("utf-8", "surrogateescape")) for name, value in kept]
