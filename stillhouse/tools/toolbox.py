"""The tools of a run and how a model's call becomes a result.

Nothing a model writes and nothing a tool does raises here: every failure is a message to the model and a kind to count.
"""

import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Self

from stillhouse.config import ToolsConfig
from stillhouse.errors import ConfigError
from stillhouse.tools.calls import MALFORMED_TOOL_CALL, Caller, ToolErrorKind, ToolResult
from stillhouse.tools.context import Closing, RolloutScope, ToolContext, close_all
from stillhouse.tools.running import wait_for
from stillhouse.tools.sandbox import Sandbox
from stillhouse.tools.tool import Tool
from stillhouse.types import ToolSchema

__all__ = ["MALFORMED_TOOL_CALL", "BoundToolbox", "ToolErrorKind", "ToolResult", "Toolbox"]


class BoundToolbox:
    """The tools of one rollout, which share what the rollout keeps between calls."""

    def __init__(self, caller: Caller, scope: RolloutScope) -> None:
        self._caller = caller
        self._scope = scope

    async def call(self, name: str, arguments_json: str) -> ToolResult:
        """The result of one call; sync tools run in a thread, async ones in an event loop that all tools share."""
        return await self._caller.call(name, arguments_json, self._scope)


class Toolbox:
    """Tools by name.

    Used as an async context manager around the calls of a collection: what the tools share (a browser, a sandbox, the
    sessions of an MCP server) ends when the last block is left. Entering it raises ConfigError where a sandbox cannot
    load its file.

    Args:
        tools: the tools, in the order the model is shown them.
        timeout_s: longest run of one call in seconds, for tools that set none of their own.
        environment: the environment variables that `ToolArgs` and sandboxed tools see.
        resources: closed when the last `async with` block is left.
        clock: seconds that never go back.

    Raises:
        ConfigError: two different tools share a name.
    """

    def __init__(
        self,
        tools: Iterable[Tool],
        *,
        timeout_s: float = 60.0,
        environment: Mapping[str, str] | None = None,
        resources: Sequence[Closing] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tools: dict[str, Tool] = {}
        for one in tools:
            if self._tools.setdefault(one.name, one) is not one:
                raise ConfigError(f"tools: two tools are called {one.name!r}; rename one of the functions")
        self._sandbox = Sandbox(environment or {})
        self._caller = Caller(self._tools, timeout_s, environment or {}, self._sandbox, clock)
        self._resources = [*resources, self._sandbox]
        self._num_entered = 0
        self._lock = threading.Lock()

    @classmethod
    def from_config(cls, config: ToolsConfig) -> "Toolbox":
        """The built-in tools, those of the user's file and those of MCP servers.

        Equal configs and an unchanged file give the same toolbox as long as the process lives: shards share its browser
        and its limits, and the schemas an MCP server listed first stay what the model is shown.

        Raises:
            ConfigError: the file does not load, a server cannot list its tools, or two tools share a name.
        """
        from stillhouse.tools.configured import toolbox_of

        return toolbox_of(config)

    @property
    def names(self) -> list[str]:
        """Names of the tools, in order."""
        return list(self._tools)

    @property
    def takes_context(self) -> bool:
        """Whether a tool is told whose call it runs, so that a prompt's metadata may decide its result."""
        return any(one.args_parameter is not None for one in self._tools.values())

    def select(self, names: Sequence[str] | None) -> "Toolbox":
        """A toolbox of these tools only; None selects all. Calls to any other are then calls to an unknown tool.

        What the tools share stays with this toolbox: enter this one, not the selection.

        Raises:
            ConfigError: a name is not in the toolbox.
        """
        if names is None:
            return self
        missing = [name for name in names if name not in self._tools]
        if missing:
            raise ConfigError(
                f"tool {missing[0]!r} is not configured; configured are: {', '.join(self._tools) or 'none'}. "
                "Add it to tools.builtin or define it in tools.file"
            )
        selected = Toolbox([self._tools[name] for name in names])
        selected._caller = self._caller.of(selected._tools)
        return selected

    def schemas(self, names: Sequence[str] | None = None) -> list[ToolSchema]:
        """Schemas of these tools; None gives all.

        Raises:
            ConfigError: a name is not in the toolbox.
        """
        return [one.schema for one in self.select(names)._tools.values()]

    @asynccontextmanager
    async def rollout(self, context: ToolContext) -> AsyncIterator[BoundToolbox]:
        """The tools for one rollout; what they keep for it (the session of an MCP server) ends with the block."""
        scope = RolloutScope(context)
        try:
            yield BoundToolbox(self._caller, scope)
        finally:
            await scope.close()

    async def call(self, name: str, arguments_json: str, context: ToolContext | None = None) -> ToolResult:
        """The result of one call that shares nothing with another; see `BoundToolbox.call`."""
        async with self.rollout(context or ToolContext()) as bound:
            return await bound.call(name, arguments_json)

    def call_sync(self, name: str, arguments_json: str, context: ToolContext | None = None) -> ToolResult:
        """As `call`, for callers without an event loop."""
        return wait_for(self.call(name, arguments_json, context))

    async def __aenter__(self) -> Self:
        # Now rather than at the thousandth rollout: a file may load here and not in the sandbox's environment.
        await self._sandbox.load({one.source.file for one in self._tools.values() if one.source is not None})
        with self._lock:
            self._num_entered += 1
        return self

    async def __aexit__(self, *exception: object) -> None:
        with self._lock:
            self._num_entered -= 1
            is_last = self._num_entered == 0
        if is_last:
            await close_all(self._resources)
