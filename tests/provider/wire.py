"""HTTP/1.1 on `asyncio.Protocol`.

No web framework lets an application reset a connection, cut a body or fall silent, and this has to stay ahead of every
client measured against it. A connection carries one request at a time.
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

import httptools
import orjson

from tests.provider.reply import Reply

_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    402: "Payment Required",
    404: "Not Found",
    429: "Too Many Requests",
}


@dataclass(slots=True)
class Request:
    method: bytes = b""
    path: bytes = b""
    body: bytes = b""
    authorization: str = ""


Handler = Callable[["Connection", Request], None]


class Connection(asyncio.Protocol):
    """One connection; `handle` is called with each whole request and answers it by `answer` now or later."""

    def __init__(self, handle: Handler, peers: "set[Connection]") -> None:
        self._handle = handle
        self._peers = peers
        self._parser = httptools.HttpRequestParser(self)
        self._request = Request()
        self.on_lost: Callable[[], None] | None = None
        """Called when the other side is gone."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport has the methods of asyncio.Transport and is none.
        self.transport = cast("asyncio.Transport", transport)
        self._peers.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._peers.discard(self)
        if self.on_lost is not None:
            self.on_lost()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.abort()

    def on_message_begin(self) -> None:
        self._request = Request()

    def on_url(self, url: bytes) -> None:
        self._request.path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        # httptools keeps the case that came; lower() on every name would be a third of the parsing.
        if len(name) == 13 and name.lower() == b"authorization":
            self._request.authorization = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._request.body += body

    def on_message_complete(self) -> None:
        self._request.method = self._parser.get_method()
        self._handle(self, self._request)

    def answer(self, reply: Reply) -> None:
        """Send the reply, or do to the connection what its fault says."""
        if self.transport.is_closing():
            return
        if reply.fault == "reset":
            # Zero linger makes close() send RST.
            linger = struct.pack("ii", 1, 0)
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.transport.abort()
        elif reply.fault == "close":
            self.transport.close()
        else:
            self._send(reply)

    def _send(self, reply: Reply) -> None:
        body = reply.body if isinstance(reply.body, bytes) else orjson.dumps(reply.body)
        head = (
            f"HTTP/1.1 {reply.status} {_REASONS.get(reply.status, 'Error')}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n"
        )
        for name, value in reply.headers.items():
            head += f"{name}: {value}\r\n"
        cut = reply.fault == "cut"
        self.transport.write(head.encode("latin-1") + b"\r\n" + (body[: len(body) // 2] if cut else body))
        if cut or not self._parser.should_keep_alive():
            self.transport.close()
