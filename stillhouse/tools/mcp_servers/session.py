"""Sessions with an MCP server: opened, used, and closed."""

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
from typing import Any, Final, Literal, TextIO

import httpx2
import mcp_types
from mcp import Client, MCPError
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from stillhouse.config import McpServerConfig
from stillhouse.http.bodies import ACCEPT_ENCODING
from stillhouse.http.hooks import guard_answers
from stillhouse.http.keys import KeyRedactor
from stillhouse.tools.mcp_servers.results import readable

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
_CONNECT_TIMEOUT_S: Final = 30.0
_CLOSE_TIMEOUT_S: Final = 10.0
_MAX_PAGES: Final = 100


def _redactor_of(config: McpServerConfig) -> KeyRedactor:
    """Redacts the header values sent to the server from its answers."""
    sent = [os.environ.get(variable, "") for variable in config.headers_env.values()]
    # It may repeat KEY alone of `Bearer KEY`.
    return KeyRedactor(*sent, *(value.partition(" ")[2] for value in sent))


def _http_client(config: McpServerConfig, session: "Session") -> httpx2.AsyncClient:
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
        event_hooks={"response": [note_lost_session, guard_answers(_redactor_of(config), is_stream=is_stream)]},
    )


@asynccontextmanager
async def _stderr(name: str, session: "Session") -> AsyncIterator[TextIO]:
    """The standard error of a started server; its end means that the server is gone."""
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


@cache
def _certificates() -> ssl.SSLContext:
    # Cached: reading the certificates takes 20 ms, and every session has a client.
    return httpx2.create_ssl_context()


class SessionLost(Exception):
    """The session ended while a call was under way."""

    def __init__(self, *, was_not_executed: bool) -> None:
        super().__init__("the session ended")
        self.was_not_executed = was_not_executed
        """True if the server certainly did not execute the call."""


class Session:
    """A session that lives in a task of its own, since its cancel scopes must be left in the task that entered them."""

    def __init__(self, config: McpServerConfig, mode: Mode) -> None:
        self.is_gone = False
        """True once the session is unusable: its server ended, or does not know it."""
        self.was_refused = False
        """True once the server rejected a request as of an unknown session, without executing it."""
        self.stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        """The last lines a server started here wrote to standard error."""
        self._config = config
        self._mode = mode
        self._leave = asyncio.Event()
        self._entered: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live())

    @property
    def is_open(self) -> bool:
        """False once it is known that calls cannot succeed."""
        return not self._task.done() and not self.is_gone

    async def entered(self) -> Client:
        """The client after the handshake; raises the error of a failed handshake."""
        return await asyncio.shield(self._entered)

    async def call(self, name: str, arguments: dict[str, Any]) -> mcp_types.CallToolResult:
        """The tool's answer.

        Raises:
            SessionLost: the session ended before the answer.
            MCPError: the server refused the call.
        """
        client = await self.entered()
        answer = asyncio.ensure_future(client.call_tool(name, arguments))
        try:
            await asyncio.wait({answer, self._task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not answer.done():
                answer.cancel()
        if answer.cancelled() or not answer.done():
            raise SessionLost(was_not_executed=False)
        error = answer.exception()
        if error is None:
            return answer.result()
        if isinstance(error, MCPError):
            if error.code == mcp_types.CONNECTION_CLOSED:
                raise SessionLost(was_not_executed=False) from error
            if self.was_refused:
                raise SessionLost(was_not_executed=True) from error
        raise error

    async def close(self) -> None:
        """Ends the session and waits for its end."""
        self._leave.set()
        if not self._entered.done():
            self._task.cancel()
        _, waiting = await asyncio.wait({self._task}, timeout=_CLOSE_TIMEOUT_S)
        if waiting:
            self._task.cancel()
            await asyncio.wait(waiting)

    async def _live(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                if self._config.url is not None:
                    http = await stack.enter_async_context(_http_client(self._config, self))
                    transport = readable(streamable_http_client(self._config.url, http_client=http))
                    client = await stack.enter_async_context(Client(transport, mode=self._mode, cache=None))
                else:
                    errors = await stack.enter_async_context(_stderr(self._config.name, self))
                    names = (*_ALWAYS, *self._config.environment)
                    process = StdioServerParameters(
                        command=sys.executable,
                        args=["-I", "-S", str(_SUPERVISOR), ",".join(names), *self._config.command],
                        env={name: os.environ[name] for name in names if name in os.environ},
                    )
                    transport = readable(stdio_client(process, errlog=errors))
                    client = await stack.enter_async_context(Client(transport, mode=self._mode, cache=None))
                    # Held open here, the pipe would outlive the server.
                    errors.close()
                self._entered.set_result(client)
                await self._leave.wait()
        except Exception as error:
            if not self._entered.done():
                self._entered.set_exception(error)
        finally:
            if not self._entered.done():
                self._entered.cancel()


class ServerUnreachable(Exception):
    """No session could be opened."""

    def __init__(self, error: BaseException, stderr: str, redactor: KeyRedactor) -> None:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        reason = redactor.text(str(error)) or type(error).__name__
        super().__init__(f"no answer within {_CONNECT_TIMEOUT_S:g} s" if isinstance(error, TimeoutError) else reason)
        self.stderr = stderr
        """The last lines of standard error of a server started here."""
        self.speaks_another_revision = (
            isinstance(error, MCPError) and error.code == mcp_types.UNSUPPORTED_PROTOCOL_VERSION
        )


async def open_session(config: McpServerConfig, mode: Mode) -> tuple[Session, dict[str, mcp_types.Tool]]:
    """A new session and the tools that the server lists in it.

    Raises:
        ServerUnreachable: no session could be opened.
    """
    session = Session(config, mode)
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            return session, await _list_tools(session)
    # The transports of mcp raise any error of their libraries, in groups; each is a failed connect.
    except Exception as error:
        unreachable = ServerUnreachable(error, "\n".join(session.stderr), _redactor_of(config))
    except BaseException:
        await session.close()
        raise
    await session.close()
    # Not where it was caught: the error itself, which may repeat a key, is no part of what is raised.
    raise unreachable


async def _list_tools(session: Session) -> dict[str, mcp_types.Tool]:
    client = await session.entered()
    tools: dict[str, mcp_types.Tool] = {}
    cursor = None
    for _ in range(_MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools.update((tool.name, tool) for tool in page.tools)
        cursor = page.next_cursor
        if cursor is None:
            break
    return tools
