"""Hooks for packages that bring their own HTTP client: answers that are bounded and free of keys.

An event hook leaves the client's transports, proxies and certificates as they are.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass

import httpx2

from stillhouse.http.bodies import MAX_ANSWER_BYTES, BodyRefused, adecoded, complete_lines
from stillhouse.http.keys import KeyRedactor

ResponseHook = Callable[[httpx2.Response], Awaitable[None]]


def guard_answers(redactor: KeyRedactor, is_stream: Callable[[httpx2.Response], bool]) -> ResponseHook:
    """Return a hook for `event_hooks["response"]` of an asynchronous client, where `is_stream` tells endless answers.

    Requests and reads raise httpx2.DecodingError for an answer that is longer, or in a coding that was not requested.
    """

    async def guard(response: httpx2.Response) -> None:
        headers, body = redactor.headers(dict(response.headers)), response.stream
        assert isinstance(body, httpx2.AsyncByteStream)
        response.stream = _GuardedBody(response.request, body, headers, redactor, is_stream(response))
        describing_body = ("content-encoding", "content-length")
        kept = [(name, value) for name, value in headers.items() if name.lower() not in describing_body]
        response.headers = httpx2.Headers(kept)
        # The text behind the status is the server's own.
        response.extensions.pop("reason_phrase", None)

    return guard


@dataclass(eq=False)
class _GuardedBody(httpx2.AsyncByteStream):
    """The decoded body in complete lines, as a key is within one; of a stream only lines are bounded."""

    request: httpx2.Request
    body: httpx2.AsyncByteStream
    headers: Mapping[str, str]
    redactor: KeyRedactor
    is_stream: bool

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for lines in complete_lines(self._bounded(), MAX_ANSWER_BYTES):
                yield self.redactor.body(lines)
        except BodyRefused as error:
            raise httpx2.DecodingError(f"the answer {error}", request=self.request) from error

    async def _bounded(self) -> AsyncIterator[bytes]:
        num_bytes = 0
        async for piece in adecoded(self.headers, self.body):
            num_bytes += len(piece)
            if num_bytes > MAX_ANSWER_BYTES and not self.is_stream:
                raise BodyRefused(f"is longer than {MAX_ANSWER_BYTES >> 20} MiB")
            yield piece

    async def aclose(self) -> None:
        await self.body.aclose()
