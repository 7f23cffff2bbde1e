"""The tools of the config's MCP servers, frozen when the run starts."""

import asyncio
import random
import re
from collections.abc import Sequence
from typing import Final

import mcp_types

from stillhouse.config import McpServerConfig
from stillhouse.errors import ConfigError
from stillhouse.tools.arguments import reader_of_schema
from stillhouse.tools.context import RolloutScope
from stillhouse.tools.loop_thread import LoopThread
from stillhouse.tools.mcp_servers.server import McpServer, SessionSlot
from stillhouse.tools.tool import Tool
from stillhouse.types import JsonObject, ToolSchema

# https://platform.openai.com/docs/api-reference/chat/create: the name of a function.
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
# For connecting, beyond the time limit of the call.
_CONNECT_ALLOWANCE_S: Final = 120.0


class McpTools:
    """The servers' tools and their sessions. The constructor connects to every server to list its tools.

    Names, descriptions and input schemas are frozen for the run, as they are part of every prompt. Calls to a tool that
    a server has since removed or changed are refused.

    Args:
        servers: the config's servers, in the order their tools are offered.
        rng: randomises the delay of retries.

    Raises:
        ConfigError: a server cannot be used, lacks an allowed tool, or has one whose name cannot be offered; two
            servers offer tools of one name.
    """

    def __init__(self, servers: Sequence[McpServerConfig], rng: random.Random | None = None) -> None:
        self._thread = LoopThread("mcp")
        self._servers = [McpServer(server, rng or random.Random()) for server in servers]
        self.tools: list[Tool] = []
        try:
            listed = self._thread.run_blocking(self._freeze())
            owners: dict[str, str] = {}
            for config, server, tools in zip(servers, self._servers, listed, strict=True):
                for tool in tools:
                    _check_name(config.name, tool.name, owners)
                    self.tools.append(self._make_tool(config, server, tool))
        except BaseException:
            self._thread.close()
            raise

    async def close(self) -> None:
        """Ends all sessions, and the servers that were started for them."""
        if self._thread.is_running:
            await self._thread.run(self._close_servers())
            await asyncio.to_thread(self._thread.close)

    async def _freeze(self) -> list[list[mcp_types.Tool]]:
        return await asyncio.gather(*(server.freeze() for server in self._servers))

    async def _close_servers(self) -> None:
        await asyncio.gather(*(server.close() for server in self._servers))

    def _make_tool(self, config: McpServerConfig, server: McpServer, tool: mcp_types.Tool) -> Tool:
        async def call(arguments: JsonObject, scope: RolloutScope) -> str:
            session = scope.keep(server, lambda: _RolloutSession(self._thread, server))
            return await self._thread.run(server.call(session.slot, tool.name, arguments))

        schema: ToolSchema = {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description or tool.title or tool.name,
                "parameters": tool.input_schema,
            },
        }
        return Tool(
            name=tool.name,
            schema=schema,
            function=call,
            read_arguments=reader_of_schema(tool.input_schema),
            write_result=str,
            timeout_s=config.timeout_s + _CONNECT_ALLOWANCE_S,
            scope_parameter="scope",
        )


class _RolloutSession:
    """A rollout's session with a server."""

    def __init__(self, thread: LoopThread, server: McpServer) -> None:
        self._thread = thread
        self._server = server
        self.slot: SessionSlot = server.slot()

    async def close(self) -> None:
        """Ends the rollout's session, if it has one of its own."""
        if self.slot.session is not None and self._thread.is_running:
            await self._thread.run(self._server.leave(self.slot))


def _check_name(server: str, name: str, owners: dict[str, str]) -> None:
    if _NAME.fullmatch(name) is None:
        raise ConfigError(
            f"MCP server {server!r}: the name of its tool {name!r} cannot be offered to a model (letters, digits, _ "
            "and -, at most 64); list the others under `allow`"
        )
    if name in owners:
        raise ConfigError(
            f"MCP servers {owners[name]!r} and {server!r} both have a tool {name!r}; list under `allow` what each is "
            "to offer"
        )
    owners[name] = server
