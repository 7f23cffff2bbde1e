"""One session with an MCP server."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import mcp_types
from mcp import Client, MCPError

from stillhouse.tools.mcp_servers.connection import Line

_CLOSE_TIMEOUT_S: Final = 10.0

OpenClient = Callable[[Line], AbstractAsyncContextManager[Client]]


class Dropped(Exception):
    """The session ended while a call was under way."""

    def __init__(self, *, was_not_executed: bool) -> None:
        super().__init__("the session ended")
        self.was_not_executed = was_not_executed
        """True where it is sure that the server did not carry the call out."""


class Session:
    """A session that lives in a task of its own.

    The cancel scopes of a session must be left in the task that entered them, while the calls of a rollout, its end and
    the end of the run come from many. So one task enters, waits and leaves, and the others only send requests.
    """

    def __init__(self, open_client: OpenClient) -> None:
        self._open_client = open_client
        self._line = Line()
        self._leave = asyncio.Event()
        self._entered: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live())

    @property
    def is_open(self) -> bool:
        """False from the moment it is known that no call can get through any more."""
        return not self._task.done() and not self._line.is_gone

    @property
    def stderr(self) -> str:
        """The last lines the server wrote to standard error, where it is a process that was started here."""
        return "\n".join(self._line.stderr)

    async def entered(self) -> Client:
        """The client, when the handshake is done; raises what the handshake failed with."""
        return await asyncio.shield(self._entered)

    async def call(self, name: str, arguments: dict[str, Any]) -> mcp_types.CallToolResult:
        """What the tool answered.

        Raises:
            Dropped: the session ended before an answer came.
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
            raise Dropped(was_not_executed=False)
        error = answer.exception()
        if error is None:
            return answer.result()
        if isinstance(error, MCPError):
            if error.code == mcp_types.CONNECTION_CLOSED:
                raise Dropped(was_not_executed=False) from error
            if self._line.was_refused:
                raise Dropped(was_not_executed=True) from error
        raise error

    async def close(self) -> None:
        """Leaves the session and waits until it is left."""
        self._leave.set()
        if not self._entered.done():
            self._task.cancel()
        _, waiting = await asyncio.wait({self._task}, timeout=_CLOSE_TIMEOUT_S)
        if waiting:
            self._task.cancel()
            await asyncio.wait(waiting)

    async def _live(self) -> None:
        try:
            async with self._open_client(self._line) as client:
                self._entered.set_result(client)
                await self._leave.wait()
        except Exception as error:
            if not self._entered.done():
                self._entered.set_exception(error)
        finally:
            if not self._entered.done():
                self._entered.cancel()
