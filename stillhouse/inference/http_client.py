"""The plain HTTP client, for servers of one's own: one attempt at one request through aiohttp.

It takes some 0.09 ms of CPU a request, the `openai` package, through which hosted endpoints are asked, several times
that (`benchmarks/rollouts`): a server on loopback answers faster than the package could ask.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from io import BytesIO
from typing import Any, Final

import aiohttp
import yarl

from stillhouse.http.bodies import ACCEPT_ENCODING, MAX_ANSWER_BYTES, BodyRefused, Decoder, aread_within, complete_lines
from stillhouse.http.keys import KeyRedactor
from stillhouse.inference.connections import connector_of_client
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.inference.transport import HttpAnswer, answered, refusal
from stillhouse.store import exact_json

_CONNECT_TIMEOUT_S: Final = 30.0
_NEVER_SENT: Final = (
    aiohttp.ClientConnectorError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.InvalidURL,
    aiohttp.NonHttpUrlClientError,
)
_CONNECTION_ERRORS: Final = (aiohttp.ClientError, OSError, TimeoutError)


class HttpClient:
    """A `Transport` over aiohttp, which also reads and sends files, as batches need. Make it inside a running loop.

    An answer is waited for `timeout_s`, from sending to its last byte; `timeout_setting` is the config field that sets
    it, for the message when it has passed. Of an answer longer than `max_bytes` the rest is not read.
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
        self._key = endpoint.api_key
        self._redactor = KeyRedactor(self._key)
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._timeout_hint = "" if timeout_setting is None else f" ({timeout_setting})"
        self._clock = clock
        # Parsed once: a text would be parsed for each request.
        self._base = yarl.URL(endpoint.base_url)
        connect_s = min(timeout_s, _CONNECT_TIMEOUT_S)
        self.long_timeout = aiohttp.ClientTimeout(sock_connect=connect_s, sock_read=timeout_s)
        key = {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
        connector, is_own = connector_of_client()
        self._session = aiohttp.ClientSession(
            connector=connector,
            connector_owner=is_own,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=connect_s),
            headers={**key, "Content-Type": "application/json", "Accept-Encoding": ACCEPT_ENCODING},
            trust_env=endpoint.may_use_proxy,
        )

    async def post(self, path: str, body: object) -> HttpAnswer:
        """Return the answer to one POST of `body` to `path`, below `base_url`; raise RequestFailed for any other."""
        content = exact_json.dumps(body)
        name, _, query = path.partition("?")
        return await self._answered(self.exchange("POST", self._base / name, data=content, params=query or None))

    async def get(self, path: str, **query: str) -> HttpAnswer:
        """Return as `post` does, for a GET."""
        return await self._answered(self.exchange("GET", self._base / path, params=query or None))

    async def upload(self, path: str, name: str, content: bytes, **fields: str) -> HttpAnswer:
        """Return as `post` does, for a form with a file; `timeout_s` bounds each wait, not the whole upload."""
        form = aiohttp.FormData(fields)
        form.add_field("file", BytesIO(content), filename=name)
        body = form()
        sent = {"data": body, "headers": {"Content-Type": body.headers["Content-Type"]}, "timeout": self.long_timeout}
        return await self._answered(self.exchange("POST", self._base / path, **sent))

    async def lines(self, path: str) -> AsyncIterator[bytes]:
        """Yield the lines of a file of any length, each of at most `max_bytes`; `timeout_s` bounds each wait for data.

        Lines end at a line feed alone. Redirects are followed, to another host without the key. Raise RequestFailed if
        it cannot be read, or not to its end.
        """
        status = None
        try:
            async with self._session.get(
                self._base / path, timeout=self.long_timeout, **await self._signature()
            ) as answer:
                status, told = answer.status, self._redactor.headers(answer.headers)
                Decoder(told)
                if status != 200:
                    raise RequestFailed(refusal(status, told, await self._whole(answer)))
                async for chunk in complete_lines(answer.content.iter_any(), self._max_bytes):
                    for line in self._redactor.body(chunk.removesuffix(b"\n")).split(b"\n"):
                        yield line
        except (BodyRefused, *_CONNECTION_ERRORS) as error:
            raise RequestFailed(self._no_answer(error, status)) from None

    async def exchange(self, method: str, url: yarl.URL, **request: Any) -> tuple[int, Mapping[str, str], bytes]:
        """Return the status, headers and body of an answer, the latter two without the key.

        Redirects are not followed. `request` is as aiohttp takes it. Raise RequestFailed if there is no answer, or none
        that may be read.
        """
        status = None
        try:
            async with self._session.request(method, url, allow_redirects=False, **request) as answer:
                status, headers = answer.status, self._redactor.headers(answer.headers)
                # Refuses codings that were not requested; aiohttp itself decodes, in pieces that wait to be read.
                Decoder(headers)
                return status, headers, await self._whole(answer)
        except (BodyRefused, *_CONNECTION_ERRORS) as error:
            # Without its cause, which may hold the key as it came.
            raise RequestFailed(self._no_answer(error, status)) from None

    def redact(self, key: str) -> None:
        """Take `key` out of answers from now on, in place of the one before."""
        if key != self._key:
            self._key, self._redactor = key, KeyRedactor(key)

    async def _signature(self) -> dict[str, Any]:
        """Return what to add to a request that the session does not sign."""
        return {}

    async def _answered(self, exchange: Awaitable[tuple[int, Mapping[str, str], bytes]]) -> HttpAnswer:
        started = self._clock()
        return answered(*await exchange, self._clock() - started)

    async def _whole(self, answer: aiohttp.ClientResponse) -> bytes:
        return self._redactor.body(await aread_within(answer.content.iter_any(), self._max_bytes))

    async def aclose(self) -> None:
        await self._session.close()

    def _no_answer(self, error: Exception, status: int | None) -> Failure:
        """Return the failure of a refused body, an endpoint that is not there or is slow, or a lost connection."""
        if isinstance(error, BodyRefused):
            return Failure(FailureKind.PERMANENT, self._redactor.text(f"the answer {error}"), status)
        if isinstance(error, _NEVER_SENT):
            return Failure(FailureKind.TRANSIENT, self._redactor.text(str(error)), unreachable=True)
        if isinstance(error, TimeoutError):
            return Failure(FailureKind.STALL, f"no answer within {self._timeout_s:g} s{self._timeout_hint}")
        # Of an answer that is no HTTP, the error repeats the beginning.
        lost = self._redactor.text(str(error)) or type(error).__name__
        return Failure(FailureKind.TRANSIENT, f"the connection was lost: {lost}")
