"""Sessions with an MCP server: opened with retries in a protocol revision that it speaks, used, and closed."""

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Final

import mcp_types
from mcp import Client, MCPError

from stillhouse.config import McpServerConfig
from stillhouse.errors import ConfigError
from stillhouse.http.keys import KeyRedactor
from stillhouse.tools.mcp_servers.connection import ConnectionState, Mode, connected, redactor_of

_CLOSE_TIMEOUT_S: Final = 10.0

OpenClient = Callable[[ConnectionState], AbstractAsyncContextManager[Client]]
MAX_CONNECTS: Final = 8
"""Most simultaneous connects to one server, however many rollouts start together."""
_CONNECT_TIMEOUT_S: Final = 30.0
_CONNECT_ATTEMPTS: Final = 3
_RETRY_WITHIN_S: Final = 1.0
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
        reason = (
            f"no answer within {_CONNECT_TIMEOUT_S:g} s"
            if isinstance(error, TimeoutError)
            else redactor.text(str(error))
        )
        super().__init__(reason or type(error).__name__)
        self.stderr = stderr
        """The last lines of standard error of a server started here."""
        self.speaks_another_revision = (
            isinstance(error, MCPError) and error.code == mcp_types.UNSUPPORTED_PROTOCOL_VERSION
        )


class SessionOpener:
    """Opens sessions with one server.

    Args:
        config: the server.
        rng: randomises the delay of retries.
    """

    def __init__(self, config: McpServerConfig, rng: random.Random) -> None:
        self._config = config
        self._rng = rng
        self._mode: Mode = "legacy"
        self._connects = asyncio.Semaphore(MAX_CONNECTS)

    def reset(self) -> None:
        """Allows the next session to be opened in another event loop."""
        self._connects = asyncio.Semaphore(MAX_CONNECTS)

    async def open_first(self) -> tuple[Session, Mapping[str, mcp_types.Tool]]:
        """As `open`; also determines the protocol revision that the server speaks.

        Sessions exist only up to revision 2025-11-25, so that is tried first; a newer server may know only a newer one.

        Raises:
            ServerUnreachable: no session could be opened.
            ConfigError: the server has no sessions, and is not declared stateless.
        """
        try:
            return await self.open()
        except ServerUnreachable as error:
            if not error.speaks_another_revision:
                raise
            if self._config.url is not None and not self._config.stateless:
                raise ConfigError(
                    f"MCP server {self._config.name!r} speaks only a revision of the protocol without sessions; "
                    "declare it with `stateless: true`"
                ) from error
        self._mode = "auto"
        return await self.open()

    async def open(self) -> tuple[Session, Mapping[str, mcp_types.Tool]]:
        """A new session and its tools; retried, since nothing was requested in it yet.

        Raises:
            ServerUnreachable: no session could be opened.
        """
        for attempt in range(1, _CONNECT_ATTEMPTS + 1):
            async with self._connects:
                session = Session(partial(connected, self._config, self._mode))
                try:
                    async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                        return session, await _listed(await session.entered())
                # The transports of mcp raise any error of their libraries, in groups; each is a failed connect.
                except Exception as error:
                    await session.close()
                    unreachable = ServerUnreachable(error, session.stderr, redactor_of(self._config))
                except BaseException:
                    await session.close()
                    raise
            if unreachable.speaks_another_revision or attempt == _CONNECT_ATTEMPTS:
                break
            await asyncio.sleep(self._rng.uniform(0.0, _RETRY_WITHIN_S * attempt))
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
