"""`StudentRollout`: a trajectory that is being sampled, with the tools it calls."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from stillhouse.agent.turns import End, TurnState
from stillhouse.chat.content import Call
from stillhouse.serving.generation import Generation
from stillhouse.tools.calls import ToolErrorKind
from stillhouse.tools.context import ToolContext
from stillhouse.tools.running import wait_for
from stillhouse.tools.toolbox import BoundToolbox, Toolbox, ToolResult
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import Message, Turn

_INVALID: Final[frozenset[ToolErrorKind]] = frozenset({"unknown_tool", "malformed_arguments", "invalid_arguments"})


@dataclass(slots=True)
class StudentRollout:
    """One rollout of the student.

    What the tools keep for it, such as the session of an MCP server, lives until `close`.
    """

    group: int
    """Number of its group among those that are sampled."""
    round_index: int
    """Seeds its completions."""
    context: ToolContext
    toolbox: Toolbox
    """Holds the tools that the prompt offers and no other."""
    record: SampledTrajectory
    """As far as it goes, with the prompt's tokens at first; its lists are appended to."""
    state: TurnState
    best_ids: list[np.ndarray] = field(default_factory=list)
    """Of each completion, where they were asked for."""
    num_requested_calls: int = 0
    """Calls of all turns, run or not: the ids of the next ones go on from here."""
    num_tool_calls: int = 0
    num_invalid_tool_calls: int = 0
    num_drifted_turns: int = 0
    end: End | None = None
    """None while it is being sampled."""
    _open_tools: BoundToolbox | None = None
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    def add_completion(self, message: Message, generation: Generation) -> None:
        """Append what the student sampled."""
        record = self.record
        for place, version in enumerate(generation.policy_versions, len(record.token_ids)):
            if version != (record.version_changes[-1][1] if record.version_changes else record.policy_version):
                record.version_changes.append((place, version))
        self._add(generation.completion_ids, generation.logprobs, [message], is_sampled=True)
        if generation.best_ids_NK is not None:
            self.best_ids.append(generation.best_ids_NK)
        record.turns.append(Turn(generation.finish_reason, usage={}, latency_s=None, model=record.model))
        self.num_requested_calls += len(message.get("tool_calls") or ())

    def add_replies(self, messages: Sequence[Message], token_ids: Sequence[int]) -> None:
        """Append what the student reads before its next turn, such as tool results; it is never trained on."""
        self._add(token_ids, [0.0] * len(token_ids), messages, is_sampled=False)

    def _add(
        self, token_ids: Sequence[int], logprobs: Sequence[float], messages: Sequence[Message], *, is_sampled: bool
    ) -> None:
        self.record.messages.extend(messages)
        self.record.token_ids.extend(token_ids)
        self.record.loss_mask.extend([is_sampled] * len(token_ids))
        self.record.sampling_logprobs.extend(logprobs)

    async def call_tools(self, calls: Sequence[Call]) -> list[ToolResult]:
        """Return the results of the calls of one turn, which run at the same time."""
        if self._open_tools is None:
            self._open_tools = await self._stack.enter_async_context(self.toolbox.rollout(self.context))
        results = await asyncio.gather(*(self._open_tools.call(call.name, call.arguments) for call in calls))
        num_errors = sum(result.error_kind is not None for result in results)
        self.record.turns[-1] = replace(self.record.turns[-1], num_tool_errors=num_errors)
        self.num_tool_calls += len(results)
        self.num_invalid_tool_calls += sum(result.error_kind in _INVALID for result in results)
        return results

    def close(self) -> None:
        """End what the tools keep; nothing happens where none was called."""
        if self._open_tools is not None:
            self._open_tools = None
            wait_for(self._stack.aclose())

    def trajectory(self) -> SampledTrajectory:
        """Return the record of a rollout that has ended."""
        assert self.end is not None
        return replace(
            self.record,
            stop_reason=self.end.stop_reason,
            error=self.end.error,
            best_ids_NK=np.concatenate(self.best_ids) if self.best_ids else None,
            num_tool_calls=self.num_tool_calls,
            num_invalid_tool_calls=self.num_invalid_tool_calls,
            num_drifted_turns=self.num_drifted_turns,
        )


def call_all(turns: Sequence[tuple[StudentRollout, Sequence[Call]]]) -> list[list[ToolResult]]:
    """Return the results of the calls of turns that ended together: a slow tool holds up the decoding only once."""

    async def run() -> list[list[ToolResult]]:
        return await asyncio.gather(*(rollout.call_tools(calls) for rollout, calls in turns))

    return wait_for(run()) if turns else []
