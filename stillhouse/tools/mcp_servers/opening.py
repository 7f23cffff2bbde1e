"""How sessions with a server are opened: a few at a time, tried again, in a revision of the protocol that it speaks."""

import asyncio
import random
from collections.abc import Mapping
from functools import partial
from typing import Final

import mcp_types
from mcp import Client, MCPError

from stillhouse.config import McpServerConfig
from stillhouse.errors import ConfigError
from stillhouse.http.keys import KeyRedactor
from stillhouse.tools.mcp_servers.connection import Mode, connected, redactor_of
from stillhouse.tools.mcp_servers.session import Session

MAX_CONNECTS: Final = 8
"""Connects to one server at the same time; hundreds of rollouts that begin together wait for each other."""

_CONNECT_TIMEOUT_S: Final = 30.0
_CONNECT_ATTEMPTS: Final = 3
_RETRY_WITHIN_S: Final = 1.0
_MAX_PAGES: Final = 100


class Unreachable(Exception):
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
        """The last lines of a server that was started here."""
        self.speaks_another_revision = (
            isinstance(error, MCPError) and error.code == mcp_types.UNSUPPORTED_PROTOCOL_VERSION
        )


class Opener:
    """Opens sessions with one server.

    Args:
        config: the server.
        rng: spreads connects that are tried again.
    """

    def __init__(self, config: McpServerConfig, rng: random.Random) -> None:
        self._config = config
        self._rng = rng
        self._mode: Mode = "legacy"
        self._connects = asyncio.Semaphore(MAX_CONNECTS)

    def reset(self) -> None:
        """Lets the next session be opened in another event loop."""
        self._connects = asyncio.Semaphore(MAX_CONNECTS)

    async def open_first(self) -> tuple[Session, Mapping[str, mcp_types.Tool]]:
        """As `open`, and finds out which revision of the protocol the server speaks.

        Sessions exist only up to revision 2025-11-25, so that is tried first; a newer server may know only its own.

        Raises:
            Unreachable: no session could be opened.
            ConfigError: the server has no sessions, and is not declared stateless.
        """
        try:
            return await self.open()
        except Unreachable as error:
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
        """A new session and the tools the server has in it. Nothing was asked of it yet, so this is tried again.

        Raises:
            Unreachable: no session could be opened.
        """
        for attempt in range(1, _CONNECT_ATTEMPTS + 1):
            async with self._connects:
                session = Session(partial(connected, self._config, self._mode))
                try:
                    async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                        return session, await _listed(await session.entered())
                # The transports of mcp raise whatever their libraries do, in groups; each is a failed connect.
                except Exception as error:
                    await session.close()
                    unreachable = Unreachable(error, session.stderr, redactor_of(self._config))
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
