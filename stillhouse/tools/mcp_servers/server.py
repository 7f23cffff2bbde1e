"""One MCP server: its tools, frozen when the run starts, its sessions, and the recovery of lost ones."""

import asyncio
import logging
import os
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import mcp_types
from mcp import MCPError
from pydantic import ValidationError

from stillhouse.config import McpServerConfig
from stillhouse.errors import ConfigError
from stillhouse.keys import unset
from stillhouse.processes.loop_thread import LoopThread
from stillhouse.tools.calls import CallFailed
from stillhouse.tools.context import RolloutScope, ToolError
from stillhouse.tools.mcp_servers.session import Mode, ServerUnreachable, Session, SessionLost, open_session
from stillhouse.types import JsonObject

_log = logging.getLogger(__name__)

MAX_CONNECTS: Final = 8
"""Most simultaneous connects to one server, however many rollouts start together."""
_CONNECT_ATTEMPTS: Final = 3
_RETRY_WITHIN_S: Final = 1.0


@dataclass(slots=True, eq=False)
class SessionSlot:
    """Holds the session of one rollout, or the one shared by all rollouts."""

    server: "McpServer"
    session: Session | None = None
    has_state: bool = False
    """True once a call may have changed state in the session, which a new one would lack."""
    changed: frozenset[str] = frozenset()
    """Tools whose schema the server has changed since `freeze`."""
    connecting: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def close(self) -> None:
        await self.server.leave(self)


class McpServer:
    """A server's tools and sessions, in the event loop of `thread`.

    A session is opened by the first call of a rollout (of any rollout, if the server is declared stateless). A call
    whose session was lost is repeated once in a new session, if the old one had no state and the call was not executed
    or may be repeated (`readOnlyHint`, `idempotentHint`). Else the model gets an error.
    """

    def __init__(self, config: McpServerConfig, thread: LoopThread, timeout_s: float) -> None:
        self._config = config
        self._thread = thread
        self._timeout_s = timeout_s
        self._mode: Mode = "legacy"
        self._connects = asyncio.Semaphore(MAX_CONNECTS)
        self._tools: dict[str, mcp_types.Tool] = {}
        self._pooled = SessionSlot(self)

    async def freeze(self) -> list[mcp_types.Tool]:
        """Return the tools to offer for the run, as the server describes them now.

        Raise ConfigError if the server cannot be reached, a variable it needs is not set, it lacks an allowed tool, or
        it has no sessions and is not declared stateless.
        """
        config = self._config
        for variable in (*config.environment, *config.headers_env.values()):
            if variable not in os.environ:
                raise ConfigError(
                    f"MCP server {config.name!r}: {unset(variable)}, or take it out of the server's config",
                    code="mcp-variable",
                )
        try:
            session, current_tools = await self._open_first()
        except ServerUnreachable as error:
            where = config.url or " ".join(config.command)
            wrote = f"; it wrote:\n{error.stderr}" if error.stderr else ""
            raise ConfigError(f"MCP server {config.name!r} ({where}) cannot be used: {error}{wrote}") from error
        missing = [name for name in config.allow if name not in current_tools]
        if missing:
            raise ConfigError(
                f"MCP server {config.name!r} has no tool {missing[0]!r}, which its allow-list names; it has: "
                f"{', '.join(current_tools) or 'none'}"
            )
        self._tools = {name: tool for name, tool in current_tools.items() if not config.allow or name in config.allow}
        if config.stateless:
            self._pooled.session = session
        else:
            await session.close()
        return list(self._tools.values())

    async def call(self, scope: RolloutScope, name: str, arguments: JsonObject) -> str:
        """Return a tool's answer as text; may be awaited in any event loop.

        Raise ToolError, for the model, if the tool failed or could not be called, CallFailed if it did not return in
        time.
        """
        slot = self._pooled if self._config.stateless else scope.keep(self, lambda: SessionSlot(self))
        return await self._thread.run(self._call(slot, name, arguments))

    async def leave(self, slot: SessionSlot) -> None:
        """Close the session of a rollout at its end; may be awaited in any event loop."""
        if slot.session is not None and self._thread.is_running:
            await self._thread.run(self._drop(slot, slot.session))

    async def close(self) -> None:
        """Close the shared session; later calls may come from another event loop."""
        pooled, self._pooled = self._pooled, SessionSlot(self)
        self._connects = asyncio.Semaphore(MAX_CONNECTS)
        if pooled.session is not None:
            await self._drop(pooled, pooled.session)

    async def _call(self, slot: SessionSlot, name: str, arguments: JsonObject) -> str:
        try:
            result = await self._ask(slot, name, arguments)
        except SessionLost as lost:
            if not lost.was_not_executed and not _may_be_repeated(self._tools[name]):
                raise ToolError(
                    f"the connection to {self._config.name} broke during the call, which may or may not have been "
                    "carried out"
                ) from lost
            try:
                result = await self._ask(slot, name, arguments)
            except SessionLost as lost_again:
                raise ToolError(f"the connection to {self._config.name} broke twice during the call") from lost_again
        text = "\n".join(block.text for block in result.content if isinstance(block, mcp_types.TextContent))
        if result.is_error:
            raise ToolError(text or f"{name} failed and did not say why")
        return text

    async def _ask(self, slot: SessionSlot, name: str, arguments: JsonObject) -> mcp_types.CallToolResult:
        session = await self._session(slot, name)
        try:
            async with asyncio.timeout(self._timeout_s):
                result = await session.call(name, arguments)
        except SessionLost:
            await self._drop(slot, session)
            raise
        except (MCPError, ValidationError, RuntimeError) as error:
            if isinstance(error, MCPError) and error.code != mcp_types.PARSE_ERROR:
                raise ToolError(f"{self._config.name} refused the call: {error.message}") from error
            raise ToolError(f"{self._config.name} answered the call with something that is no result") from error
        except TimeoutError as error:
            # The server may still be executing it.
            self._note_state(slot, name)
            raise CallFailed("timeout", f"{name} did not return within {self._timeout_s:g} s") from error
        self._note_state(slot, name)
        return result

    def _note_state(self, slot: SessionSlot, name: str) -> None:
        if not (self._config.stateless or _reads_only(self._tools[name])):
            slot.has_state = True

    async def _session(self, slot: SessionSlot, name: str) -> Session:
        """Return an open session in which the tool still has the schema shown to the model."""
        async with slot.connecting:
            if slot.session is not None and not slot.session.is_open:
                await self._drop(slot, slot.session)
            if slot.session is None:
                if slot.has_state:
                    slot.has_state = False
                    raise ToolError(
                        f"the session with {self._config.name} ended, and what earlier calls left in it is gone; the "
                        "next call begins a new one"
                    )
                try:
                    slot.session, current_tools = await self._open()
                except ServerUnreachable as error:
                    # Its output is for the log only: it may hold paths and secrets of this machine.
                    _log.warning("MCP server %s cannot be reached: %s\n%s", self._config.name, error, error.stderr)
                    raise ToolError(f"{self._config.name} cannot be reached: {error}") from error
                slot.changed = self._changed(current_tools)
            if name in slot.changed:
                raise ToolError(f"{self._config.name} has changed {name} since it was described to you; do without it")
            return slot.session

    async def _open_first(self) -> tuple[Session, Mapping[str, mcp_types.Tool]]:
        """Return as `_open` does; also determine the protocol revision that the server speaks.

        Sessions exist only up to revision 2025-11-25, so that is tried first; a newer server may know only a newer one.
        """
        try:
            return await self._open()
        except ServerUnreachable as error:
            if not error.speaks_another_revision:
                raise
            if self._config.url is not None and not self._config.stateless:
                raise ConfigError(
                    f"MCP server {self._config.name!r} speaks only a revision of the protocol without sessions; "
                    "declare it with `stateless: true`"
                ) from error
        self._mode = "auto"
        return await self._open()

    async def _open(self) -> tuple[Session, Mapping[str, mcp_types.Tool]]:
        """Return a new session and its tools; retried, since nothing was requested in it yet."""
        attempt = 1
        while True:
            try:
                async with self._connects:
                    return await open_session(self._config, self._mode)
            except ServerUnreachable as error:
                if error.speaks_another_revision or attempt == _CONNECT_ATTEMPTS:
                    raise
            await asyncio.sleep(random.uniform(0.0, _RETRY_WITHIN_S * attempt))
            attempt += 1

    async def _drop(self, slot: SessionSlot, session: Session) -> None:
        if slot.session is session:
            slot.session = None
        await session.close()

    def _changed(self, current_tools: Mapping[str, mcp_types.Tool]) -> frozenset[str]:
        changed = frozenset(
            name
            for name, tool in self._tools.items()
            if name not in current_tools or current_tools[name].input_schema != tool.input_schema
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
