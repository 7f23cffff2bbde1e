"""Sessions with an MCP server: opened, used, and closed."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Final

import mcp_types
from mcp import Client, MCPError

from stillhouse.config import McpServerConfig
from stillhouse.http.keys import KeyRedactor
from stillhouse.tools.mcp_servers.connection import ConnectionState, Mode, connected, redactor_of

_CLOSE_TIMEOUT_S: Final = 10.0

OpenClient = Callable[[ConnectionState], AbstractAsyncContextManager[Client]]
_CONNECT_TIMEOUT_S: Final = 30.0
_MAX_PAGES: Final = 100


class SessionLost(Exception):
    """The session ended while a call was under way."""

    def __init__(self, *, was_not_executed: bool) -> None:
        super().__init__("the session ended")
        self.was_not_executed = was_not_executed
        """True if the server certainly did not execute the call."""


class Session:
    """A session that lives in a task of its own, since its cancel scopes must be left in the task that entered them."""

    def __init__(self, open_client: OpenClient) -> None:
        self._open_client = open_client
        self._state = ConnectionState()
        self._leave = asyncio.Event()
        self._entered: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live())

    @property
    def is_open(self) -> bool:
        """False once it is known that calls cannot succeed."""
        return not self._task.done() and not self._state.is_gone

    @property
    def stderr(self) -> str:
        """The last lines of standard error of a server started here."""
        return "\n".join(self._state.stderr)

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
            if self._state.was_refused:
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
            async with self._open_client(self._state) as client:
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
    session = Session(partial(connected, config, mode))
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            return session, await _listed(await session.entered())
    # The transports of mcp raise any error of their libraries, in groups; each is a failed connect.
    except Exception as error:
        unreachable = ServerUnreachable(error, session.stderr, redactor_of(config))
    except BaseException:
        await session.close()
        raise
    await session.close()
    # Not where it was caught: the error itself, which may repeat a key, is no part of what is raised.
    raise unreachable


async def _listed(client: Client) -> dict[str, mcp_types.Tool]:
    tools: dict[str, mcp_types.Tool] = {}
    cursor = None
    for _ in range(_MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools.update((tool.name, tool) for tool in page.tools)
        cursor = page.next_cursor
        if cursor is None:
            break
    return tools
