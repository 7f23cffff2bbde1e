"""The HTTP client of everything that asks a model: one attempt at one request through aiohttp.

aiohttp was chosen by measurement: with 256 requests in flight it takes some 0.09 ms of CPU a request, the `openai`
package ten to thirty times that (`benchmarks/rollouts`). What the package adds, typed objects and retries of its own,
is not needed here: few keys of an answer are read, and retries have one owner, `retry`.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import aiohttp
import orjson
import yarl

from stillhouse.http.bodies import ACCEPT_ENCODING, MAX_ANSWER_BYTES, BodyRefused, Decoder, aread_within
from stillhouse.http.keys import KeyRedactor
from stillhouse.inference.completion import Completion, Sampling, read_completion, request_body
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed, classify
from stillhouse.inference.rate_limit import RateLimits, read_limits
from stillhouse.types import Message, ToolSchema

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
    """The endpoint's limits by the headers."""

    def body(self) -> Any:
        """The parsed JSON, in which NaN and infinities are numbers, or the text that is no JSON."""
        return _json_or_text(self.content)


class HttpClient:
    """A `ChatClient` over aiohttp. Make it inside a running event loop.

    Args:
        endpoint: the endpoint that is asked.
        timeout_s: longest wait for one answer in seconds, from sending to its last byte.
        clock: seconds that never go back.
        max_bytes: longest answer; what is longer is not read.
        timeout_setting: config field that sets `timeout_s`, for the message when it has passed.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        max_bytes: int = MAX_ANSWER_BYTES,
        timeout_setting: str = "runtime.request_timeout_s",
    ) -> None:
        self._endpoint = endpoint
        self._redactor = KeyRedactor(endpoint.api_key)
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._timeout_setting = timeout_setting
        self._clock = clock
        # Parsed once: a text would be parsed for each request.
        self._base = yarl.URL(endpoint.base_url)
        key = {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_UNLIMITED),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(timeout_s, _CONNECT_TIMEOUT_S)),
            headers={**key, "Content-Type": "application/json", "Accept-Encoding": ACCEPT_ENCODING},
            trust_env=endpoint.may_use_proxy,
        )

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], sampling: Sampling
    ) -> Completion:
        """See `ChatClient`."""
        answer = await self.post("chat/completions", request_body(self._endpoint, messages, tools, sampling))
        completion = read_completion(
            answer.content,
            answer.headers,
            latency_s=answer.latency_s,
            model=self._endpoint.model,
            record_tokens=sampling.record_tokens,
        )
        return replace(completion, turn=self._endpoint.with_cost(completion.turn), limits=answer.limits)

    async def post(self, path: str, body: object) -> HttpAnswer:
        """The answer with HTTP 200 to one POST.

        Args:
            path: relative to the endpoint's `base_url`.
            body: sent as JSON.

        Raises:
            RequestFailed: there is none.
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
                # Refuses codings that were not requested; aiohttp itself decodes, in pieces that wait to be read.
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

    def _no_answer(self, error: Exception) -> Failure:
        """Distinguishes an endpoint that is not there, one that is slow, and a lost connection."""
        if isinstance(error, _NEVER_SENT):
            return Failure(FailureKind.TRANSIENT, self._redactor.text(str(error)), unreachable=True)
        if isinstance(error, TimeoutError):
            return Failure(FailureKind.STALL, f"no answer within {self._timeout_s:g} s ({self._timeout_setting})")
        # Of an answer that is no HTTP, the error repeats the beginning.
        lost = self._redactor.text(str(error)) or type(error).__name__
        return Failure(FailureKind.TRANSIENT, f"the connection was lost: {lost}")


def _refusal(status: int, headers: Mapping[str, str], content: bytes) -> Failure:
    if 300 <= status < 400:
        message = f"HTTP {status}: the endpoint has moved to {headers.get('location')}; name that in base_url"
        return Failure(FailureKind.PERMANENT, message, status)
    return classify(status, headers, _json_or_text(content), datetime.now(UTC))


def _json_or_text(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        text = content.decode(errors="replace")
    try:
        # Takes NaN and infinities, which servers in Python write.
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
