"""Transports of sessions with MCP servers: HTTP with the config's headers, or a started program."""

import asyncio
import logging
import os
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Final, TextIO

import httpx2

from stillhouse.config import McpServerConfig
from stillhouse.http.bodies import ACCEPT_ENCODING
from stillhouse.http.hooks import guard_answers
from stillhouse.http.keys import KeyRedactor

_log = logging.getLogger(__name__)
# These log every request, the second one with its headers.
for _name in ("httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.WARNING)

_SESSION_HEADER: Final = "mcp-session-id"
_STDERR_LINES: Final = 20
# Reading the certificates takes 20 ms, and every session has a client.
_certificates = cache(httpx2.create_ssl_context)


@dataclass(eq=False)
class Watched:
    is_gone: bool = False
    """True once the session is unusable: its server ended, or does not know it."""
    was_refused: bool = False
    """True once the server rejected a request as of an unknown session, without executing it."""
    stderr: deque[str] = field(default_factory=lambda: deque(maxlen=_STDERR_LINES))
    """The last lines that a server started here wrote to standard error."""


def redactor_of(config: McpServerConfig) -> KeyRedactor:
    """Redact the header values sent to the server from its answers."""
    sent = [os.environ.get(variable, "") for variable in config.headers_env.values()]
    # It may repeat KEY alone of `Bearer KEY`.
    return KeyRedactor(*sent, *(value.partition(" ")[2] for value in sent))


def http_client(config: McpServerConfig, session: Watched) -> httpx2.AsyncClient:
    async def note_lost_session(response: httpx2.Response) -> None:
        # "404 Not Found ... the client MUST start a new session": the request was not carried out.
        # https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#session-management
        if response.status_code == httpx2.codes.NOT_FOUND and _SESSION_HEADER in response.request.headers:
            session.is_gone = session.was_refused = True

    def is_stream(response: httpx2.Response) -> bool:
        # mcp bounds each event.
        return response.headers.get("content-type", "").lower().startswith("text/event-stream")

    sent = {header: os.environ[variable] for header, variable in config.headers_env.items()}
    return httpx2.AsyncClient(
        headers={"Accept-Encoding": ACCEPT_ENCODING, **sent},
        # Calls have time limits of their own; an event stream may be silent meanwhile.
        timeout=httpx2.Timeout(30.0, read=None),
        # All rollouts may share the session of a stateless server, and a pool would silently queue them.
        limits=httpx2.Limits(max_connections=None),
        verify=_certificates(),
        event_hooks={"response": [note_lost_session, guard_answers(redactor_of(config), is_stream=is_stream)]},
    )


@asynccontextmanager
async def stderr_of(name: str, session: Watched) -> AsyncIterator[TextIO]:
    """Yield the standard error of a started server; its end means that the server is gone."""
    reading, writing = os.pipe()
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reading, "rb")
    )

    async def follow() -> None:
        with suppress(ValueError):  # a line of more than 64 kB
            while stderr_line := await stream.readline():
                session.stderr.append(stderr_line.decode(errors="replace").rstrip())
                _log.debug("MCP server %s: %s", name, session.stderr[-1])
            session.is_gone = True

    following = asyncio.create_task(follow())
    file = os.fdopen(writing, "w")
    try:
        yield file
    finally:
        file.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await following
        transport.close()
