"""The tools of the config's MCP servers, frozen when the run starts."""

import asyncio
import re
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Final, TypeVar

import mcp_types

from stillhouse.config import McpServerConfig
from stillhouse.errors import ConfigError
from stillhouse.tools.arguments import reader_of_schema
from stillhouse.tools.context import RolloutScope
from stillhouse.tools.decorator import Tool
from stillhouse.tools.loop_thread import LoopThread
from stillhouse.tools.mcp_servers.server import McpServer
from stillhouse.types import JsonObject

# https://platform.openai.com/docs/api-reference/chat/create: the name of a function.
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
# For connecting, beyond the time limit of the call.
_CONNECT_ALLOWANCE_S: Final = 120.0


T = TypeVar("T")


class McpTools:
    """The servers' tools and their sessions. The constructor connects to every server to list its tools.

    Names, descriptions and input schemas are frozen for the run, as they are part of every prompt. Calls to a tool that
    a server has since removed or changed are refused.

    Raises:
        ConfigError: a server cannot be used, lacks an allowed tool, or has one whose name cannot be offered; two
            servers offer tools of one name.
    """

    def __init__(self, servers: Sequence[McpServerConfig]) -> None:
        self._thread = LoopThread("mcp")
        self._servers = [McpServer(server, self._thread) for server in servers]
        self.tools: list[Tool] = []
        try:
            listed = self._thread.run_blocking(_all(server.freeze() for server in self._servers))
            owners: dict[str, str] = {}
            for config, server, tools in zip(servers, self._servers, listed, strict=True):
                for tool in tools:
                    _check_name(config.name, tool.name, owners)
                    self.tools.append(_make_tool(config, server, tool))
        except BaseException:
            self._thread.close()
            raise

    async def close(self) -> None:
        """Ends all sessions, and the servers that were started for them."""
        if self._thread.is_running:
            await self._thread.run(_all(server.close() for server in self._servers))
            await asyncio.to_thread(self._thread.close)


async def _all(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    return await asyncio.gather(*work)


def _make_tool(config: McpServerConfig, server: McpServer, tool: mcp_types.Tool) -> Tool:
    async def call(arguments: JsonObject, scope: RolloutScope) -> str:
        return await server.call(scope, tool.name, arguments)

    description = tool.description or tool.title or tool.name
    return Tool(
        name=tool.name,
        schema={
            "type": "function",
            "function": {"name": tool.name, "description": description, "parameters": tool.input_schema},
        },
        function=call,
        read_arguments=reader_of_schema(tool.input_schema),
        write_result=str,
        timeout_s=config.timeout_s + _CONNECT_ALLOWANCE_S,
        scope_parameter="scope",
    )


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
