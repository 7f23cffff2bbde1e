"""Connections to an MCP server: over the pipes of a process started here, or over streamable HTTP."""

import asyncio
import logging
import os
import ssl
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Final, Literal, TextIO

import httpx2
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from stillhouse.config import McpServerConfig
from stillhouse.errors import ConfigError
from stillhouse.http.bodies import ACCEPT_ENCODING
from stillhouse.http.hooks import guard_answers
from stillhouse.http.keys import KeyRedactor

_log = logging.getLogger(__name__)
# A broken connection is reported to the model and counted; mcp would log a traceback for each.
logging.getLogger("mcp.client").setLevel(logging.CRITICAL)
# These log every request, the second one with its headers.
for _name in ("httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.WARNING)

Mode = Literal["legacy", "auto"]
"""Protocol revision: `legacy` has a handshake and sessions, `auto` tries the revision of 2026-07-28 first."""

_SUPERVISOR: Final = Path(__file__).with_name("process_supervisor.py")
_ALWAYS: Final = ("PATH", "HOME")
_SESSION_HEADER: Final = "mcp-session-id"
_STDERR_LINES: Final = 20


class ConnectionState:
    """The state of a connection, apart from its messages."""

    def __init__(self) -> None:
        self.is_gone = False
        """True once the session is unusable: its server ended, or does not know it."""
        self.was_refused = False
        """True once the server rejected a request as of an unknown session, without executing it."""
        self.stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        """The last lines a started server wrote to standard error."""


@asynccontextmanager
async def connected(config: McpServerConfig, mode: Mode, state: ConnectionState) -> AsyncIterator[Client]:
    """A session with the server; must be left in the task that entered it, because of its cancel scopes."""
    async with AsyncExitStack() as stack:
        if config.url is not None:
            http = await stack.enter_async_context(_http_client(config, state))
            transport = streamable_http_client(config.url, http_client=http)
            yield await stack.enter_async_context(Client(transport, mode=mode, cache=None))
        else:
            errors = await stack.enter_async_context(_stderr(config.name, state))
            transport = stdio_client(_process(config), errlog=errors)
            client = await stack.enter_async_context(Client(transport, mode=mode, cache=None))
            # Held open here, the pipe would outlive the server.
            errors.close()
            yield client


def check_environment(config: McpServerConfig) -> None:
    """Validates that the environment variables named in the server's config are set.

    Raises:
        ConfigError: one is not.
    """
    for name in (*config.environment, *config.headers_env.values()):
        if name not in os.environ:
            raise ConfigError(
                f"MCP server {config.name!r}: the environment variable {name} that it needs is not set; set it, or "
                "take it out of the server's config"
            )


def redactor_of(config: McpServerConfig) -> KeyRedactor:
    """Redacts the header values sent to the server from its answers."""
    sent = [os.environ.get(variable, "") for variable in config.headers_env.values()]
    # It may repeat KEY alone of `Bearer KEY`.
    return KeyRedactor(*sent, *(value.partition(" ")[2] for value in sent))


def _process(config: McpServerConfig) -> StdioServerParameters:
    names = (*_ALWAYS, *config.environment)
    return StdioServerParameters(
        command=sys.executable,
        args=["-I", "-S", str(_SUPERVISOR), ",".join(names), *config.command],
        env={name: os.environ[name] for name in names if name in os.environ},
    )


def _http_client(config: McpServerConfig, state: ConnectionState) -> httpx2.AsyncClient:
    async def note_lost_session(response: httpx2.Response) -> None:
        # "404 Not Found ... the client MUST start a new session": the request was not carried out.
        # https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#session-management
        if response.status_code == httpx2.codes.NOT_FOUND and _SESSION_HEADER in response.request.headers:
            state.is_gone = state.was_refused = True

    sent = {header: os.environ[variable] for header, variable in config.headers_env.items()}
    return httpx2.AsyncClient(
        headers={"Accept-Encoding": ACCEPT_ENCODING, **sent},
        # Calls have time limits of their own; an event stream may be silent meanwhile.
        timeout=httpx2.Timeout(30.0, read=None),
        # All rollouts may share the session of a stateless server, and a pool would silently queue them.
        limits=httpx2.Limits(max_connections=None),
        verify=_certificates(),
        event_hooks={"response": [note_lost_session, guard_answers(redactor_of(config), is_stream=_is_event_stream)]},
    )


def _is_event_stream(response: httpx2.Response) -> bool:
    """Whether it is an event stream, of which mcp bounds each event."""
    return response.headers.get("content-type", "").lower().startswith("text/event-stream")


@asynccontextmanager
async def _stderr(name: str, state: ConnectionState) -> AsyncIterator[TextIO]:
    """The standard error of a started server; its end means that the server is gone."""
    reading, writing = os.pipe()
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reading, "rb")
    )

    async def follow() -> None:
        with suppress(ValueError):  # a line of more than 64 kB
            while stderr_line := await stream.readline():
                state.stderr.append(stderr_line.decode(errors="replace").rstrip())
                _log.debug("MCP server %s: %s", name, state.stderr[-1])
            state.is_gone = True

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


@cache
def _certificates() -> ssl.SSLContext:
    # Cached: reading the certificates takes 20 ms, and every session has a client.
    return httpx2.create_ssl_context()
