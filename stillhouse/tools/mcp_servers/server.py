"""One MCP server of the config: its frozen tools, its sessions, and what happens when one breaks."""

import asyncio
import logging
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import mcp_types
from mcp import MCPError

from stillhouse.config import McpServerConfig
from stillhouse.errors import ConfigError
from stillhouse.tools.calls import CallFailed
from stillhouse.tools.context import ToolError
from stillhouse.tools.mcp_servers.connection import check_environment
from stillhouse.tools.mcp_servers.content import as_text
from stillhouse.tools.mcp_servers.opening import Opener, Unreachable
from stillhouse.tools.mcp_servers.session import Dropped, Session

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Seat:
    """Where a session stands: the one of a rollout, or the one of all rollouts."""

    session: Session | None = None
    has_state: bool = False
    """True once a call may have left something in the session that a new one would lack."""
    changed: frozenset[str] = frozenset()
    """Tools whose schema the server has changed since it was frozen."""
    connecting: asyncio.Lock = field(default_factory=asyncio.Lock)


class McpServer:
    """A server's tools and sessions; everything runs in the one event loop it is used in.

    A session is opened by the first call of a rollout (of any rollout, where the server is declared stateless). A call
    whose session broke is repeated once, in a new session, if nothing was lost with the old one and the call was not
    carried out or may be repeated (`readOnlyHint`, `idempotentHint`). Else the model is told what is known.
    """

    def __init__(self, config: McpServerConfig, rng: random.Random) -> None:
        self._config = config
        self._opener = Opener(config, rng)
        self._tools: dict[str, mcp_types.Tool] = {}
        self._pooled = Seat()

    async def freeze(self) -> list[mcp_types.Tool]:
        """The tools to offer, as the server describes them now; they stay so for the run.

        Raises:
            ConfigError: the server cannot be reached, a variable it needs is not set, or it lacks an allowed tool.
        """
        check_environment(self._config)
        try:
            session, listed = await self._opener.open_first()
        except Unreachable as error:
            where = self._config.url or " ".join(self._config.command)
            wrote = f"; it wrote:\n{error.stderr}" if error.stderr else ""
            raise ConfigError(f"MCP server {self._config.name!r} ({where}) cannot be used: {error}{wrote}") from error
        missing = [name for name in self._config.allow if name not in listed]
        if missing:
            raise ConfigError(
                f"MCP server {self._config.name!r} has no tool {missing[0]!r}, which its allow-list names; it has: "
                f"{', '.join(listed) or 'none'}"
            )
        self._tools = {
            name: tool for name, tool in listed.items() if not self._config.allow or name in self._config.allow
        }
        if self._config.stateless:
            self._pooled.session = session
        else:
            await session.close()
        return list(self._tools.values())

    def seat(self) -> Seat:
        """Where a new rollout's calls go."""
        return self._pooled if self._config.stateless else Seat()

    async def call(self, seat: Seat, name: str, arguments: dict[str, Any]) -> str:
        """What a tool answered, as text.

        Raises:
            ToolError: the tool failed, or could not be called; the message is fit for the model.
            CallFailed: it did not return in time.
        """
        session = await self._session(seat, name)
        try:
            result = await self._ask(seat, session, name, arguments)
        except Dropped as drop:
            await self._drop(seat, session)
            if not drop.was_not_executed and not _may_be_repeated(self._tools[name]):
                raise ToolError(
                    f"the connection to {self._config.name} broke during the call, which may or may not have been "
                    "carried out"
                ) from drop
            session = await self._session(seat, name)
            result = await self._ask_again(seat, session, name, arguments)
        text = as_text(result)
        if result.is_error:
            raise ToolError(text or f"{name} failed and did not say why")
        return text

    async def leave(self, seat: Seat) -> None:
        """Closes the session of a rollout that has ended; the one of all rollouts stays."""
        if seat is not self._pooled and seat.session is not None:
            await self._drop(seat, seat.session)

    async def close(self) -> None:
        """Closes the session of all rollouts; after it, calls may come from another event loop."""
        pooled, self._pooled = self._pooled, Seat()
        self._opener.reset()
        if pooled.session is not None:
            await self._drop(pooled, pooled.session)

    async def _ask(
        self, seat: Seat, session: Session, name: str, arguments: dict[str, Any]
    ) -> mcp_types.CallToolResult:
        try:
            async with asyncio.timeout(self._config.timeout_s):
                result = await session.call(name, arguments)
        except MCPError as error:
            raise ToolError(f"{self._config.name} refused the call: {error.message}") from error
        except TimeoutError as error:
            # The server may be at it still.
            self._note_state(seat, name)
            message = f"{name} did not return within {self._config.timeout_s:g} s"
            raise CallFailed("timeout", message) from error
        self._note_state(seat, name)
        return result

    async def _ask_again(
        self, seat: Seat, session: Session, name: str, arguments: dict[str, Any]
    ) -> mcp_types.CallToolResult:
        try:
            return await self._ask(seat, session, name, arguments)
        except Dropped as drop:
            await self._drop(seat, session)
            raise ToolError(f"the connection to {self._config.name} broke twice during the call") from drop

    def _note_state(self, seat: Seat, name: str) -> None:
        if not (self._config.stateless or _reads_only(self._tools[name])):
            seat.has_state = True

    async def _session(self, seat: Seat, name: str) -> Session:
        """An open session in which the tool is what the model was told."""
        async with seat.connecting:
            if seat.session is not None and not seat.session.is_open:
                await self._drop(seat, seat.session)
            if seat.session is None:
                if seat.has_state:
                    seat.has_state = False
                    raise ToolError(
                        f"the session with {self._config.name} ended, and what earlier calls left in it is gone; the "
                        "next call begins a new one"
                    )
                try:
                    seat.session, listed = await self._opener.open()
                except Unreachable as error:
                    # What it wrote is for the user's eyes: it may name paths and secrets of the machine.
                    _log.warning("MCP server %s cannot be reached: %s\n%s", self._config.name, error, error.stderr)
                    raise ToolError(f"{self._config.name} cannot be reached: {error}") from error
                seat.changed = self._changed(listed)
            if name in seat.changed:
                raise ToolError(f"{self._config.name} has changed {name} since it was described to you; do without it")
            return seat.session

    async def _drop(self, seat: Seat, session: Session) -> None:
        if seat.session is session:
            seat.session = None
        await session.close()

    def _changed(self, listed: Mapping[str, mcp_types.Tool]) -> frozenset[str]:
        changed = frozenset(
            name
            for name, tool in self._tools.items()
            if name not in listed or listed[name].input_schema != tool.input_schema
        )
        for name in sorted(changed):
            _log.warning(
                "MCP server %s: tool %s is no longer what it was when the run started; calls to it are refused",
                self._config.name,
                name,
            )
        return changed


def _reads_only(tool: mcp_types.Tool) -> bool:
    return tool.annotations is not None and bool(tool.annotations.read_only_hint)


def _may_be_repeated(tool: mcp_types.Tool) -> bool:
    return _reads_only(tool) or (tool.annotations is not None and bool(tool.annotations.idempotent_hint))
