"""The HTTP path: one POST a request through aiohttp.

aiohttp was chosen by measurement: with 256 requests in flight it takes some 0.09 ms of CPU a request, the `openai`
package ten to thirty times that (`benchmarks/rollouts`). What the package adds, typed objects and retries of its own,
the engine has no use for: it reads the few keys it needs, and retries have one owner elsewhere.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import aiohttp
import orjson
import yarl

from stillhouse.http.bodies import ACCEPT_ENCODING, MAX_ANSWER_BYTES, BodyRefused, Decoder, aread_within
from stillhouse.http.keys import KeyRedactor
from stillhouse.inference.completion import Completion, Sampling, read_completion
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed, classify
from stillhouse.inference.rate_limit import RateLimits, read_limits
from stillhouse.inference.request import request_body
from stillhouse.types import JsonObject, Message, ToolSchema, Turn

_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_CONNECT_TIMEOUT_S: Final = 30.0
_NEVER_SENT: Final = (
    aiohttp.ClientConnectorError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.InvalidURL,
    aiohttp.NonHttpUrlClientError,
)
# aiohttp's pool would stop at 100 connections; how many requests may be in flight is decided before they come here.
_UNLIMITED: Final = 0


class HttpAnswer(NamedTuple):
    """An answer with HTTP 200, without the key that was sent."""

    content: bytes
    headers: Mapping[str, str]
    latency_s: float
    """From sending to the last byte."""
    limits: RateLimits | None
    """What the headers say of the endpoint's limits."""


class HttpClient:
    """A `ChatClient` over aiohttp. Make it inside a running event loop.

    Args:
        endpoint: who is asked.
        timeout_s: longest wait for one answer in seconds, from sending to its last byte.
        clock: seconds that never go back.
        max_bytes: longest answer; what is longer is not read.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        max_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        self._endpoint = endpoint
        self._redactor = KeyRedactor(endpoint.api_key)
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._clock = clock
        # Parsed once: a text would be parsed for each request.
        self._base = yarl.URL(endpoint.base_url)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_UNLIMITED),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(timeout_s, _CONNECT_TIMEOUT_S)),
            headers={
                "Authorization": f"Bearer {endpoint.api_key}",
                "Content-Type": "application/json",
                "Accept-Encoding": ACCEPT_ENCODING,
            },
            # A proxy of the environment is never meant for this machine itself.
            trust_env=urlsplit(endpoint.base_url).hostname not in _LOOPBACK,
        )

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], sampling: Sampling
    ) -> Completion:
        """See `ChatClient`."""
        answer = await self.post("chat/completions", request_body(self._endpoint, messages, tools, sampling))
        said = read_completion(
            answer.content,
            answer.headers,
            latency_s=answer.latency_s,
            model=self._endpoint.model,
            record_tokens=sampling.record_tokens,
        )
        return replace(said, turn=self._priced(said.turn), limits=answer.limits)

    async def post(self, path: str, body: JsonObject) -> HttpAnswer:
        """What one POST to `path` of the endpoint was answered with HTTP 200.

        Raises:
            RequestFailed: it was not.
        """
        return await self._ask("POST", path, orjson.dumps(body))

    async def get(self, path: str) -> HttpAnswer:
        """As `post`, for a GET."""
        return await self._ask("GET", path, None)

    async def _ask(self, method: str, path: str, body: bytes | None) -> HttpAnswer:
        started = self._clock()
        try:
            async with self._session.request(method, self._base / path, data=body, allow_redirects=False) as answer:
                status, headers = answer.status, self._redactor.headers(answer.headers)
                # Refuses what was not asked for; aiohttp itself decodes, in pieces that wait to be read.
                Decoder(headers)
                content = self._redactor.body(await aread_within(answer.content.iter_any(), self._max_bytes))
        except BodyRefused as error:
            raise RequestFailed(Failure(FailureKind.PERMANENT, f"the answer {error}", status)) from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            # Without its cause, which may hold the key as it came.
            raise RequestFailed(self._no_answer(error)) from None
        if status != 200:
            raise RequestFailed(_refusal(status, headers, content))
        return HttpAnswer(content, headers, self._clock() - started, read_limits(headers, datetime.now(UTC)))

    async def aclose(self) -> None:
        """See `ChatClient`."""
        await self._session.close()

    def _priced(self, turn: Turn) -> Turn:
        """The turn with its cost by the price that is known, where the endpoint did not say what it cost."""
        price = self._endpoint.price
        if turn.cost_usd is not None or price is None:
            return turn
        return replace(turn, cost_usd=price.of(turn.usage))

    def _no_answer(self, error: Exception) -> Failure:
        """Tells an endpoint that is not there from one that is slow and from a connection that was lost."""
        if isinstance(error, _NEVER_SENT):
            return Failure(FailureKind.TRANSIENT, self._redactor.text(str(error)), unreachable=True)
        if isinstance(error, TimeoutError):
            return Failure(FailureKind.STALL, f"no answer within {self._timeout_s:g} s (runtime.request_timeout_s)")
        # Of an answer that is no HTTP, the error repeats the beginning.
        lost = self._redactor.text(str(error)) or type(error).__name__
        return Failure(FailureKind.TRANSIENT, f"the connection was lost: {lost}")


def _refusal(status: int, headers: Mapping[str, str], content: bytes) -> Failure:
    if 300 <= status < 400:
        told = f"HTTP {status}: the endpoint has moved to {headers.get('location')}; name that in base_url"
        return Failure(FailureKind.PERMANENT, told, status)
    return classify(status, headers, _parsed(content), datetime.now(UTC))


def _parsed(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return content.decode(errors="replace")
