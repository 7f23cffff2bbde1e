"""The tools of a run and how a model's call becomes a result.

Nothing a model writes and nothing a tool does raises here: a failure is a message to the model and an error kind.
"""

import copy
import os
import threading
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Self

from stillhouse.config import ToolsConfig
from stillhouse.errors import ConfigError
from stillhouse.tools.calculator import calculator
from stillhouse.tools.calls import BoundToolbox, ToolResult
from stillhouse.tools.context import AsyncClosable, RolloutScope, ToolContext, close_all
from stillhouse.tools.decorator import Tool
from stillhouse.tools.sandbox import Sandbox
from stillhouse.tools.user_file import load_decorated
from stillhouse.types import ToolSchema


class Toolbox:
    """Tools by name, in the order the model is shown them.

    Use as an async context manager around the calls of a collection: what the tools share (a browser, a sandbox, the
    sessions of an MCP server; `resources`) is closed when the last block is left. Entering raises ConfigError if a
    sandbox cannot load its file.

    `timeout_s` is the longest run of one call of tools that set none, `max_result_characters` their longest result;
    `ToolArgs` and sandboxed tools see the variables of `environment`. Raises ConfigError if two different tools share a
    name.
    """

    def __init__(
        self,
        tools: Iterable[Tool],
        *,
        timeout_s: float = 60.0,
        max_result_characters: int = 50_000,
        environment: Mapping[str, str] | None = None,
        resources: Sequence[AsyncClosable] = (),
    ) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if self._tools.setdefault(tool.name, tool) is not tool:
                raise ConfigError(f"tools: two tools are called {tool.name!r}; rename one of the functions")
        self._timeout_s = timeout_s
        self._max_result_characters = max_result_characters
        self._environment = dict(environment or {})
        self._sandbox = Sandbox(self._environment)
        self._resources = [*resources, self._sandbox]
        self._num_entered = 0
        self._lock = threading.Lock()

    @classmethod
    def from_config(cls, config: ToolsConfig) -> "Toolbox":
        """Return the built-in tools, those of the user's file and those of MCP servers.

        Equal configs and an unchanged file give the same toolbox for the life of the process: shards share its browser
        and its limits, and the model is always shown the schemas that an MCP server listed first. Raise ConfigError if
        the file does not load, a server cannot list its tools, or two tools share a name.
        """
        environment = {name: os.environ[name] for name in config.environment if name in os.environ}
        file = None if config.file is None else Path(config.file).expanduser()
        content = file.read_bytes() if file is not None and file.is_file() else None
        key = (config.model_dump_json(), content, tuple(environment.items()))
        with _CACHE_LOCK:
            if key not in _CACHE:
                tools, resources = _configured_tools(config)
                _CACHE[key] = Toolbox(
                    tools,
                    timeout_s=config.timeout_s,
                    max_result_characters=config.max_result_characters or 50_000,
                    environment=environment,
                    resources=resources,
                )
            return _CACHE[key]

    @property
    def names(self) -> list[str]:
        return list(self._tools)

    @property
    def takes_context(self) -> bool:
        """Return whether a tool takes `ToolArgs`, so that its result may depend on the prompt's metadata."""
        return any(tool.args_parameter is not None for tool in self._tools.values())

    def select(self, names: Sequence[str] | None) -> "Toolbox":
        """Return a toolbox of these tools only; None selects all. Calls to any other are then calls to an unknown tool.

        What the tools share stays with this toolbox: enter this one, not the selection. Raise ConfigError if a name is
        not in the toolbox.
        """
        if names is None:
            return self
        missing = [name for name in names if name not in self._tools]
        if missing:
            raise ConfigError(
                f"tool {missing[0]!r} is not configured; configured are: {', '.join(self._tools) or 'none'}. "
                "Add it to tools.builtin or define it in tools.file"
            )
        selected = copy.copy(self)
        selected._tools = {name: self._tools[name] for name in names}
        return selected

    def schemas(self) -> list[ToolSchema]:
        return [tool.schema for tool in self._tools.values()]

    @asynccontextmanager
    async def rollout(self, context: ToolContext) -> AsyncIterator[BoundToolbox]:
        """Yield the tools for one rollout; what they keep for it (the session of an MCP server) ends with the block."""
        scope = RolloutScope(context)
        try:
            limits = (self._timeout_s, self._max_result_characters)
            yield BoundToolbox(self._tools, *limits, self._environment, self._sandbox, scope)
        finally:
            await scope.close()

    async def call(self, name: str, arguments_json: str, context: ToolContext | None = None) -> ToolResult:
        """Return the result of one call that shares nothing with another."""
        async with self.rollout(context or ToolContext()) as bound:
            return await bound.call(name, arguments_json)

    async def __aenter__(self) -> Self:
        # Fail before the first rollout: a file may load here and not in the sandbox's environment.
        await self._sandbox.load(tool.sandboxed for tool in self._tools.values())
        with self._lock:
            self._num_entered += 1
        return self

    async def __aexit__(self, *exception: object) -> None:
        with self._lock:
            self._num_entered -= 1
            is_last = self._num_entered == 0
        if is_last:
            await close_all(self._resources)


_CACHE_LOCK: Final = threading.Lock()
_CACHE: Final[dict[tuple[object, ...], Toolbox]] = {}


def _configured_tools(config: ToolsConfig) -> tuple[list[Tool], list[AsyncClosable]]:
    tools: list[Tool] = []
    resources: list[AsyncClosable] = []
    # What a config does not name is not imported: a browser's packages and `mcp` take a second each.
    for name in config.builtin:
        if name == "calculator":
            tools.append(calculator)
        else:
            from stillhouse.tools.network.browse import Browse

            browse = Browse(config)
            tools.append(browse.tool)
            resources.append(browse)
    if config.file is not None:
        tools += load_tools(Path(config.file))
    if config.mcp:
        from stillhouse.tools.mcp_servers.tools import McpTools

        servers = McpTools(config.mcp, config.timeout_s)
        tools += servers.tools
        resources.append(servers)
    return tools, resources


def load_tools(path: Path) -> list[Tool]:
    """Return the functions under `@tool` in a Python file; see `load_decorated`."""
    return load_decorated(path, "tools.file", Tool, "tool", "the model may call")
