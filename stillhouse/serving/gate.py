"""What a request has to pass before the application reads it: the key, then the size of its body."""

import secrets
from collections.abc import Callable
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stillhouse.serving.protocol import ApiError

MAX_BODY_BYTES: Final = 32 * 2**20
"""64 prompts of 32,768 token ids are 14 MiB of JSON."""
_OPEN_PATH: Final = "/health"


class Gate:
    """ASGI middleware that answers 401 without the key and 413 to a longer body, before either is read to its end.

    Args:
        app: the application behind it, which gets a body whole.
        api_key: what clients must send; None lets everybody in. `/health` is open to all.
        rejected: called with the HTTP status of each refusal.
        max_body_bytes: longest body that is read.
    """

    def __init__(
        self,
        app: ASGIApp,
        api_key: str | None,
        rejected: Callable[[int], None],
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self._app = app
        self._expected = None if api_key is None else f"Bearer {api_key}".encode()
        self._rejected = rejected
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, or refuses it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            headers = Headers(scope=scope)
            self._check_key(scope["path"], headers)
            messages = await self._body(headers, receive)
        except ApiError as error:
            self._rejected(error.status)
            await JSONResponse(error.body, error.status, headers=error.headers)(scope, receive, send)
            return
        pending = iter(messages)

        async def receive_again() -> Message:
            return next(pending, None) or await receive()

        await self._app(scope, receive_again, send)

    def _check_key(self, path: str, headers: Headers) -> None:
        given = headers.get("authorization", "").encode()
        if self._expected and path != _OPEN_PATH and not secrets.compare_digest(given, self._expected):
            raise ApiError(
                401, "the API key is missing or wrong; send 'Authorization: Bearer KEY'", code="invalid_api_key"
            )

    async def _body(self, headers: Headers, receive: Receive) -> list[Message]:
        length = headers.get("content-length", "")
        num_bytes, messages, more = 0, list[Message](), True
        if length.isdecimal() and int(length) > self._max_body_bytes:
            raise self._too_long(f"has {length} bytes")
        while more:
            message = await receive()
            messages.append(message)
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_body_bytes:
                raise self._too_long(f"has more than {self._max_body_bytes} bytes")
            more = message["type"] == "http.request" and message.get("more_body", False)
        return messages

    def _too_long(self, seen: str) -> ApiError:
        return ApiError(
            413,
            f"the request's body {seen}; expected at most {self._max_body_bytes}; send fewer prompts in each request",
            code="request_too_large",
        )
