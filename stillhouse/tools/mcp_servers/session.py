"""Sessions with an MCP server: opened, used, and closed."""

import asyncio
import logging
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, Literal

import mcp_types
from mcp import Client, MCPError
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from stillhouse.config import McpServerConfig
from stillhouse.http.keys import KeyRedactor
from stillhouse.tools.mcp_servers.results import readable
from stillhouse.tools.mcp_servers.transport import Watched, http_client, redactor_of, stderr_of

# A broken connection is reported to the model and counted; mcp would log a traceback for each.
logging.getLogger("mcp.client").setLevel(logging.CRITICAL)

Mode = Literal["legacy", "auto"]
"""Protocol revision: `legacy` has a handshake and sessions, `auto` tries the revision of 2026-07-28 first."""

_SUPERVISOR: Final = Path(__file__).with_name("process_supervisor.py")
_ALWAYS: Final = ("PATH", "HOME")
_CONNECT_TIMEOUT_S: Final = 30.0
_CLOSE_TIMEOUT_S: Final = 10.0
_MAX_PAGES: Final = 100


class SessionLost(Exception):
    """The session ended while a call was under way."""

    def __init__(self, *, was_not_executed: bool) -> None:
        super().__init__("the session ended")
        self.was_not_executed = was_not_executed
        """True if the server certainly did not execute the call."""


class Session(Watched):
    """A session that lives in a task of its own, since its cancel scopes must be left in the task that entered them."""

    def __init__(self, config: McpServerConfig, mode: Mode) -> None:
        super().__init__()
        self._config = config
        self._mode = mode
        self._leave = asyncio.Event()
        self._entered: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live())

    @property
    def is_open(self) -> bool:
        """Return False once it is known that calls cannot succeed."""
        return not self._task.done() and not self.is_gone

    async def entered(self) -> Client:
        """Return the client after the handshake; raise the error of a failed handshake."""
        return await asyncio.shield(self._entered)

    async def call(self, name: str, arguments: dict[str, Any]) -> mcp_types.CallToolResult:
        """Return the tool's answer; raise SessionLost if the session ended before it, MCPError if it is a refusal."""
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
                    http = await stack.enter_async_context(http_client(self._config, self))
                    transport = readable(streamable_http_client(self._config.url, http_client=http))
                    client = await stack.enter_async_context(Client(transport, mode=self._mode, cache=None))
                else:
                    errors = await stack.enter_async_context(stderr_of(self._config.name, self))
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
    """Return a new session and the tools that are listed in it; raise ServerUnreachable if none could be opened."""
    session = Session(config, mode)
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            return session, await _list_tools(session)
    # The transports of mcp raise any error of their libraries, in groups; each is a failed connect.
    except Exception as error:
        unreachable = ServerUnreachable(error, "\n".join(session.stderr), redactor_of(config))
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
