"""The guard for a browser: a forward proxy on loopback through which it makes every connection.

A browser resolves names itself, follows redirects that no route handler sees, and opens WebSockets. Behind a proxy it
hands over host and port of every request (subresources, redirects, WebSockets), and the proxy connects to an address
that was checked. What is inside TLS is not seen, and need not be.

It cannot stop a browser that bypasses its proxy. `chromium_fetcher.py` closes the ways Chromium offers (the bypass for
loopback, WebRTC over UDP, file: as the first address); a page that takes over the browser's process is left to
Chromium's sandbox, which does not work for root.
"""

import asyncio
from contextlib import suppress
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from stillhouse.tools.network.guard import AddressRefused, Guard, HostUnknown, host_and_port

REASON_HEADER: Final = "x-proxy-reason"
"""Header of the proxy's own answers to plain HTTP: why there is no page."""

_CONNECT_TIMEOUT_S: Final = 10.0
_HEAD_TIMEOUT_S: Final = 30.0
_CHUNK_BYTES: Final = 65536
# RFC 9110 section 7.6.1: meant for the next hop alone.
_HOP_HEADERS: Final = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization"})


class GuardedProxy:
    """A proxy that lives as long as the browser it serves."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        """Listen on a free port of loopback, and return the proxy's URL."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_CHUNK_BYTES)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            # A reset, a cut request or one that never comes ends this connection and nothing else.
            with suppress(OSError, EOFError, asyncio.LimitOverrunError, TimeoutError):
                await self._pass_on(reader, writer)
        finally:
            self._connections.discard(task)
            writer.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_HEAD_TIMEOUT_S):
            head = await reader.readuntil(b"\r\n\r\n")
        method, _, rest = head.partition(b" ")
        target = rest.partition(b" ")[0].decode("latin-1")
        # The authority of CONNECT is always one of TLS or of a WebSocket; its own port stands in it.
        url = f"https://{target}" if method == b"CONNECT" else target
        try:
            host, port = host_and_port(url)
            remote_reader, remote_writer = await self._connect(host, port)
        except AddressRefused as refusal:
            return await _answer(writer, HTTPStatus.FORBIDDEN, str(refusal))
        except (HostUnknown, OSError) as error:
            return await _answer(writer, HTTPStatus.BAD_GATEWAY, str(error))
        try:
            if method == b"CONNECT":
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                remote_writer.write(_origin_form(head, url))
            await _splice((reader, remote_writer), (remote_reader, writer))
        finally:
            remote_writer.close()

    async def _connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        failure: OSError | None = None
        for address in await self._guard.addresses(host, port):
            try:
                async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                    return await asyncio.open_connection(address, port)
            except OSError as error:
                failure = error
        raise OSError(f"{host}:{port} takes no connection: {failure}")


def _origin_form(head: bytes, url: str) -> bytes:
    """Return the head as the origin expects it, the connection closed after it: the next may go to another host."""
    request, *headers = head[:-4].split(b"\r\n")
    method, _, version = request.split(b" ")
    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    kept = [line for line in headers if line.partition(b":")[0].strip().lower() not in _HOP_HEADERS]
    return b"\r\n".join([b" ".join([method, path.encode("latin-1"), version]), *kept, b"Connection: close", b"", b""])


async def _splice(*ways: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
    """Carry bytes in both directions until either end closes."""

    async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(_CHUNK_BYTES):
            sink.write(data)
            await sink.drain()

    carriers = [asyncio.create_task(carry(*way)) for way in ways]
    try:
        await asyncio.wait(carriers, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for carrier in carriers:
            carrier.cancel()
        await asyncio.gather(*carriers, return_exceptions=True)


async def _answer(writer: asyncio.StreamWriter, status: HTTPStatus, reason: str) -> None:
    line = reason.encode("ascii", "replace").replace(b"\r", b" ").replace(b"\n", b" ")
    writer.write(
        b"HTTP/1.1 %d %s\r\n%s: %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        % (status.value, status.phrase.encode(), REASON_HEADER.encode(), line)
    )
    await writer.drain()
