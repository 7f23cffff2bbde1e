"""Calls of the tools by many trajectories at once, for a caller without an event loop."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import NamedTuple

from stillhouse.tools.context import ToolContext
from stillhouse.tools.running import wait_for
from stillhouse.tools.toolbox import BoundToolbox, Toolbox, ToolResult
from stillhouse.types import ToolCall


class OpenTools:
    """The tools of one trajectory; what they keep for it, such as the session of an MCP server, lives until `close`."""

    def __init__(self, toolbox: Toolbox, context: ToolContext) -> None:
        self._toolbox = toolbox
        self._context = context
        self._bound: BoundToolbox | None = None
        self._stack = AsyncExitStack()

    async def call(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """Results of the calls of one turn, which run at the same time."""
        if self._bound is None:
            self._bound = await self._stack.enter_async_context(self._toolbox.rollout(self._context))
        functions = [call["function"] for call in calls]
        return await asyncio.gather(*(self._bound.call(each["name"], each["arguments"]) for each in functions))

    def close(self) -> None:
        """Ends what the tools keep; nothing happens where none was called."""
        if self._bound is not None:
            self._bound = None
            wait_for(self._stack.aclose())


class TurnCalls(NamedTuple):
    """What one trajectory calls."""

    tools: OpenTools
    calls: Sequence[ToolCall]


def call_all(turns: Sequence[TurnCalls]) -> list[list[ToolResult]]:
    """Results of the turns that ended together, in order: a slow tool holds up the decoding once and not for each."""

    async def run() -> list[list[ToolResult]]:
        return await asyncio.gather(*(turn.tools.call(turn.calls) for turn in turns))

    return wait_for(run()) if turns else []
