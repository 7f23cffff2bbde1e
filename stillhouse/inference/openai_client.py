"""The `openai` package as the client of hosted endpoints: it writes and signs requests, and sends each of them once.

Beneath it is the session of the plain client, so that bodies are bounded, keys taken out and failures told apart in one
place, before the package sees an answer. Its own transport over aiohttp takes as much CPU, calls a reset connection a
time-out to connect, bounds no whole answer and keeps cookies; its default one refuses to start beside a SOCKS proxy.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any, ClassVar, Final

import httpx2
import openai
import yarl

from stillhouse.http.bodies import ACCEPT_ENCODING
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.inference.http_client import HttpClient
from stillhouse.inference.transport import HttpAnswer
from stillhouse.store import exact_json

_JSON: Final = {"Content-Type": "application/json"}
_FORM: Final = {"Content-Type": "multipart/form-data"}
_TOKEN_END: Final = 64
"""Characters of a signature without which a token is worthless."""
_LEFT_OUT: Final = ("content-encoding", "content-length", "set-cookie")
"""Headers of the body as it came, and what httpx2 would send back."""


class OpenAIClient(HttpClient):
    """An `HttpClient` over the `openai` package. Its variables name organisation, project and headers."""

    package: ClassVar[ModuleType] = openai
    connect: ClassVar[Callable[..., Any]] = openai.AsyncOpenAI

    def __init__(self, endpoint: Endpoint, *, timeout_s: float, **options: Any) -> None:
        # The session has no key of its own, which would be sent wherever a redirect leads.
        super().__init__(replace(endpoint, api_key=""), timeout_s=timeout_s, **options)
        self.redact(endpoint.api_key)
        self._token = endpoint.token
        self._sdk = self.connect(
            api_key=endpoint.api_key if endpoint.token is None else self._redacted_token,
            base_url=endpoint.base_url,
            timeout=timeout_s,
            max_retries=0,
            http_client=httpx2.AsyncClient(
                transport=_Session(self), headers={"Accept-Encoding": ACCEPT_ENCODING}, trust_env=False
            ),
        )

    async def post(self, path: str, body: object) -> HttpAnswer:
        sent: Any = {"content": exact_json.dumps(body), "options": {"headers": _JSON}}
        return await self._answered(self._sent(self._sdk.post(path, cast_to=httpx2.Response, **sent)))

    async def get(self, path: str, **query: str) -> HttpAnswer:
        return await self._answered(self._sent(self._sdk.get(path, cast_to=httpx2.Response, options={"params": query})))

    async def upload(self, path: str, name: str, content: bytes, **fields: str) -> HttpAnswer:
        sent: Any = {"files": {"file": (name, content)}, "options": {"headers": _FORM}}
        return await self._answered(self._sent(self._sdk.post(path, cast_to=httpx2.Response, body=fields, **sent)))

    async def aclose(self) -> None:
        await self._sdk.close()
        await super().aclose()

    async def _signature(self) -> dict[str, Any]:
        # Of requests for lines, as the package hands out an answer whole.
        headers = {name: value for name, value in self._sdk.default_headers.items() if isinstance(value, str)}
        return {"headers": headers | {"Authorization": f"Bearer {self._sdk.api_key or await self._redacted_token()}"}}

    async def _sent(self, request: Awaitable[httpx2.Response]) -> tuple[int, Mapping[str, str], bytes]:
        try:
            response = await request
        except self.package.APIStatusError as error:
            response = error.response
        except self.package.APIConnectionError as error:
            if isinstance(error.__cause__, RequestFailed):
                raise error.__cause__ from None
            # What failed on the way is a RequestFailed already; this is an address that cannot be asked.
            message = f"{error.message} {error.__cause__ or ''}".strip()
            raise RequestFailed(Failure(FailureKind.TRANSIENT, message, unreachable=True)) from None
        return response.status_code, response.headers, response.content

    async def _redacted_token(self) -> str:
        """Return a token, whose end is taken out of answers from now on: the pattern of all of it takes seconds."""
        assert self._token is not None
        key = await self._token()
        self.redact(key[-_TOKEN_END:])
        return key


class _Session(httpx2.AsyncBaseTransport):
    """Sends the package's requests through the session of the plain client."""

    def __init__(self, http: HttpClient) -> None:
        self._http = http

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        # A form is a stream, which is sent as it is read.
        sent: dict[str, Any] = {"data": request.stream, "timeout": self._http.long_timeout}
        if isinstance(request.stream, httpx2.ByteStream):
            sent = {"data": request.content}
        url = yarl.URL(str(request.url), encoded=True)
        status, headers, content = await self._http.exchange(request.method, url, headers=request.headers, **sent)
        kept = [(name, value) for name, value in headers.items() if name.lower() not in _LEFT_OUT]
        # In bytes, as a server may write others than ASCII.
        raw = [(name.encode(), value.encode("utf-8", "surrogateescape")) for name, value in kept]
        return httpx2.Response(status, headers=raw, content=content)
