"""The tools of the config's MCP servers, under names that sellers take."""

import asyncio
import hashlib
import re
from collections import Counter
from collections.abc import Collection, Coroutine, Iterable, Sequence
from typing import Any, Final, TypeVar

import mcp_types

from stillhouse.config import McpServerConfig
from stillhouse.errors import ConfigError
from stillhouse.processes.loop_thread import LoopThread
from stillhouse.tools.arguments import reader_of_schema
from stillhouse.tools.context import RolloutScope
from stillhouse.tools.decorator import Tool
from stillhouse.tools.mcp_servers.server import McpServer
from stillhouse.types import JsonObject

T = TypeVar("T")

# https://platform.openai.com/docs/api-reference/chat/create: the name of a function.
_FOREIGN: Final = re.compile(r"[^a-zA-Z0-9_-]")
_MAX_NAME: Final = 64
# For connecting, beyond the time limit of the call.
_CONNECT_ALLOWANCE_S: Final = 120.0


class McpTools:
    """The servers' tools and their sessions. The constructor connects to every server to list its tools.

    Names, descriptions and input schemas are frozen for the run, as they are part of every prompt. Calls to a tool that
    a server has since removed or changed are refused. Raises ConfigError if a server cannot be used or lacks an allowed
    tool, or two servers offer tools of one name.
    """

    def __init__(self, servers: Sequence[McpServerConfig], timeout_s: float = 60.0) -> None:
        self._thread = LoopThread("mcp")
        self._servers = [McpServer(server, self._thread, timeout_s) for server in servers]
        self.tools: list[Tool] = []
        try:
            listed = self._thread.run_blocking(_all(server.freeze() for server in self._servers))
            offered = _offered_names({tool.name for tools in listed for tool in tools})
            owners: dict[str, str] = {}
            for config, server, tools in zip(servers, self._servers, listed, strict=True):
                for tool in tools:
                    if tool.name in owners:
                        raise ConfigError(
                            f"MCP servers {owners[tool.name]!r} and {config.name!r} both have a tool {tool.name!r}; "
                            "list under `allow` what each is to offer"
                        )
                    owners[tool.name] = config.name
                    self.tools.append(_make_tool(server, tool, offered[tool.name], timeout_s))
        except BaseException:
            self._thread.close()
            raise

    async def close(self) -> None:
        """End all sessions, and the servers that were started for them."""
        if self._thread.is_running:
            await self._thread.run(_all(server.close() for server in self._servers))
            await asyncio.to_thread(self._thread.close)


async def _all(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    return await asyncio.gather(*work)


def _make_tool(server: McpServer, tool: mcp_types.Tool, name: str, timeout_s: float) -> Tool:
    async def call(arguments: JsonObject, scope: RolloutScope) -> str:
        return await server.call(scope, tool.name, arguments)

    description = tool.description or tool.title or tool.name
    return Tool(
        name=name,
        schema={
            "type": "function",
            "function": {"name": name, "description": description, "parameters": tool.input_schema},
        },
        function=call,
        read_arguments=reader_of_schema(tool.input_schema),
        write_result=str,
        timeout_s=timeout_s + _CONNECT_ALLOWANCE_S,
        scope_parameter="scope",
    )


def _offered_names(names: Collection[str]) -> dict[str, str]:
    """Return the name that each tool is offered by: its own, or the nearest that sellers take and no other has."""
    near = {name: _FOREIGN.sub("_", name)[:_MAX_NAME] or "_" for name in names}
    count = Counter(near.values())
    return {
        name: offered
        if offered == name or count[offered] == 1
        else f"{offered[: _MAX_NAME - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        for name, offered in near.items()
    }
