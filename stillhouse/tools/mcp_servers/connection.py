"""How a server is reached: over the pipes of a process that is started, or over streamable HTTP."""

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
# A connection that breaks is told to the model and counted; mcp would add a traceback to the log for each.
logging.getLogger("mcp.client").setLevel(logging.CRITICAL)
# These tell of every request, the second one of headers as they came.
for _name in ("httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.WARNING)

Mode = Literal["legacy", "auto"]
"""Revision of the protocol: `legacy` shakes hands and has sessions, `auto` asks for the one of 2026-07-28 first."""

_SUPERVISOR: Final = Path(__file__).with_name("process_supervisor.py")
_ALWAYS: Final = ("PATH", "HOME")
_SESSION_HEADER: Final = "mcp-session-id"
_STDERR_LINES: Final = 20


class ConnectionState:
    """What is known of a connection beside its messages."""

    def __init__(self) -> None:
        self.is_gone = False
        """True once the session cannot be used any more: its server ended, or does not know it."""
        self.was_refused = False
        """True once the server said that it does not know the session; it did not carry out what it says so to."""
        self.stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        """The last lines a started server wrote to standard error."""


@asynccontextmanager
async def connected(config: McpServerConfig, mode: Mode, state: ConnectionState) -> AsyncIterator[Client]:
    """A session with the server; left in the task that entered it, as its cancel scopes demand."""
    async with AsyncExitStack() as stack:
        if config.url is not None:
            http = await stack.enter_async_context(_http_client(config, state))
            transport = streamable_http_client(config.url, http_client=http)
            yield await stack.enter_async_context(Client(transport, mode=mode, cache=None))
        else:
            errors = await stack.enter_async_context(_stderr(config.name, state))
            transport = stdio_client(_process(config), errlog=errors)
            client = await stack.enter_async_context(Client(transport, mode=mode, cache=None))
            # Held open here, the pipe would not end with the server.
            errors.close()
            yield client


def check_environment(config: McpServerConfig) -> None:
    """Returns where the variables the server's config names are set.

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
    """Takes what the server is sent in headers out of what it says."""
    sent = [os.environ.get(variable, "") for variable in config.headers_env.values()]
    # It may repeat the key alone of `Bearer KEY`.
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
        # The caller limits each call; a stream of events may be silent for as long as that.
        timeout=httpx2.Timeout(30.0, read=None),
        # All rollouts may share the session of a stateless server; a pool of 100 would silently queue the rest.
        limits=httpx2.Limits(max_connections=None),
        verify=_certificates(),
        event_hooks={"response": [note_lost_session, guard_answers(redactor_of(config), is_stream=_is_event_stream)]},
    )


def _is_event_stream(response: httpx2.Response) -> bool:
    """Whether it is one of events, each of which mcp bounds."""
    return response.headers.get("content-type", "").lower().startswith("text/event-stream")


@asynccontextmanager
async def _stderr(name: str, state: ConnectionState) -> AsyncIterator[TextIO]:
    """The file a started server writes its errors to; its end tells that the server is gone."""
    reading, writing = os.pipe()
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reading, "rb")
    )

    async def follow() -> None:
        with suppress(ValueError):  # a line of more than 64 kB
            while written := await stream.readline():
                state.stderr.append(written.decode(errors="replace").rstrip())
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
    # Reading the certificates takes 20 ms; there is a client a session.
    return httpx2.create_ssl_context()
