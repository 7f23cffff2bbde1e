"""The agent loop: ask, run the tools asked for, ask again, until the model answers or a bound is met.

It knows neither HTTP nor journal nor retries; both are in the two callables it is given. With those deterministic, as
replay from the journal makes them, the loop is deterministic.
"""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from stillhouse.rollouts.completion import Completion
from stillhouse.tools import ToolResult
from stillhouse.types import Message, StopReason, ToolCall, Turn

Complete = Callable[[int, list[Message]], Awaitable[Completion]]
"""(turn, conversation so far) -> completion; turns count from 0."""
CallTool = Callable[[int, int, str, str], Awaitable[ToolResult]]
"""(turn, index of the call in its turn, name, arguments as written) -> result."""


@dataclass(slots=True)
class Conversation:
    """What was said so far. It outlives the loop, so that a rollout that is cut off keeps its part."""

    messages: list[Message]
    turns: list[Turn] = field(default_factory=list)


async def run_agent(
    conversation: Conversation, *, complete: Complete, call_tool: CallTool, max_turns: int
) -> StopReason:
    """Continues the conversation until it ends; why it did.

    The calls of one turn run at the same time, and their results follow in the order of the calls. Where the last
    allowed turn still calls tools they are not run: the conversation then ends with the assistant's calls, unanswered.
    Exceptions of the two callables pass through and leave what was said before in `conversation`.
    """
    for turn in range(max_turns):
        completion = await complete(turn, conversation.messages)
        conversation.messages.append(completion.message)
        conversation.turns.append(completion.turn)
        if completion.turn.finish_reason == "length":
            return StopReason.LENGTH
        if completion.turn.finish_reason == "content_filter":
            return StopReason.CONTENT_FILTER
        calls = completion.message.get("tool_calls")
        if not calls:
            return StopReason.ANSWERED
        if turn + 1 < max_turns:
            await _run_tools(conversation, turn, calls, call_tool)
    return StopReason.MAX_TURNS


async def _run_tools(conversation: Conversation, turn: int, calls: list[ToolCall], call_tool: CallTool) -> None:
    names = [_name_and_arguments(call) for call in calls]
    results = await asyncio.gather(
        *(call_tool(turn, index, name, arguments) for index, (name, arguments) in enumerate(names))
    )
    for call, result in zip(calls, results, strict=True):
        conversation.messages.append({"role": "tool", "tool_call_id": _call_id(call), "content": result.content})
    num_errors = sum(result.error_kind is not None for result in results)
    conversation.turns[turn] = dataclasses.replace(conversation.turns[turn], num_tool_errors=num_errors)


def _name_and_arguments(call: Any) -> tuple[str, str]:
    """What a call asks for, however broken: a missing part is empty text, which no tool and no JSON object is."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return "", ""
    name, arguments = function.get("name"), function.get("arguments")
    return name if isinstance(name, str) else "", arguments if isinstance(arguments, str) else ""


def _call_id(call: Any) -> str:
    written = call.get("id") if isinstance(call, dict) else None
    return written if isinstance(written, str) else ""
