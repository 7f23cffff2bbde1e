"""The agent loop: ask, run the tools asked for, ask again, until the model answers or a bound is met.

It knows neither HTTP nor journal nor retries; both are in the two callables it is given. With those deterministic, as
replay from the journal makes them, the loop is deterministic.
"""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from stillhouse.agent.answer_schema import AnswerSchema
from stillhouse.agent.conversation import Conversation
from stillhouse.config import RolloutsConfig
from stillhouse.inference.completion import CUT_REASONS, WITHHELD_REASONS, Completion, ToolChoice
from stillhouse.tools import ToolResult
from stillhouse.types import ErrorRecord, StopReason, ToolCall

Complete = Callable[[int, ToolChoice], Awaitable[Completion]]
"""(turn, whether tools may be called) -> completion of the conversation so far; turns count from 0."""
CallTool = Callable[[int, int, str, str], Awaitable[ToolResult]]
"""(turn, index of the call in its turn, name, arguments as written) -> result."""

REFUSAL: Final = "No tool calls are left, so this one was not run. Answer now with what you have."
"""What each call of the last turn is answered with where a closing answer is wanted."""


@dataclass(frozen=True, slots=True)
class AgentRules:
    """When a conversation goes on and when it ends.

    A finish reason that is not known is taken for a regular end of its completion: what was said decides what follows.
    """

    max_turns: int
    """Most completions, a closing answer apart."""
    closing_answer: bool = False
    """Whether calls of the last turn are refused and the model is asked once more, with tools it may not call."""
    continue_message: str | None = None
    """Said by the user after an answer, until the turns are used up; None ends with the first answer."""
    answer_schema: AnswerSchema | None = None
    max_corrections: int = 0

    @classmethod
    def of(cls, config: RolloutsConfig, *, has_tools: bool) -> "AgentRules":
        """The rules a config gives rollouts with or without tools.

        Raises:
            ConfigError: `response_schema` is no JSON schema.
        """
        return cls(
            max_turns=config.max_turns,
            closing_answer=config.closing_answer and has_tools,
            continue_message=config.continue_message if config.termination_policy == "max_turns" else None,
            answer_schema=AnswerSchema(config.response_schema) if config.response_schema else None,
            max_corrections=config.max_corrections,
        )


class Ending(NamedTuple):
    """Why a conversation ended."""

    stop_reason: StopReason
    error: ErrorRecord | None = None


async def run_agent(
    conversation: Conversation, rules: AgentRules, *, complete: Complete, call_tool: CallTool
) -> Ending:
    """Continues the conversation until it ends; why it did.

    The calls of one turn run at the same time, and their results follow in the order of the calls. Calls of the last
    turn are not run: they are refused if a closing answer is wanted, which is then asked for, and otherwise the
    conversation ends with them, unanswered. Exceptions of the two callables pass through and leave what was said before
    in `conversation`.
    """
    num_corrections = 0
    for turn in range(rules.max_turns):
        completion = await _take_turn(conversation, complete, turn, "auto")
        if (stopped := _cut_short(completion)) is not None:
            return stopped
        is_last = turn + 1 == rules.max_turns
        calls = completion.message.get("tool_calls")
        if calls and is_last:
            return await _close(conversation, rules, calls, complete)
        if calls:
            await _run_tools(conversation, calls, turn, call_tool)
            continue
        problem = _problem(rules, completion)
        if problem is not None and num_corrections < rules.max_corrections and not is_last:
            assert rules.answer_schema is not None
            num_corrections += 1
            conversation.add(rules.answer_schema.correction(problem))
        elif rules.continue_message is None or is_last:
            return _answered(problem)
        else:
            conversation.add({"role": "user", "content": rules.continue_message})
    raise AssertionError("the last turn ends the conversation")


async def _take_turn(conversation: Conversation, complete: Complete, turn: int, tool_choice: ToolChoice) -> Completion:
    completion = await complete(turn, tool_choice)
    conversation.add(completion.message)
    conversation.turns.append(completion.turn)
    return completion


async def _close(conversation: Conversation, rules: AgentRules, calls: list[ToolCall], complete: Complete) -> Ending:
    """Refuses the calls of the last turn and asks for an answer without any."""
    if not rules.closing_answer:
        return Ending(StopReason.MAX_TURNS)
    for call in calls:
        conversation.add({"role": "tool", "tool_call_id": _call_id(call), "content": REFUSAL})
    conversation.turns[-1] = dataclasses.replace(conversation.turns[-1], num_refused_calls=len(calls))
    completion = await _take_turn(conversation, complete, rules.max_turns, "none")
    if (stopped := _cut_short(completion)) is not None:
        return stopped
    if completion.message.get("tool_calls"):
        return Ending(StopReason.MAX_TURNS)
    return _answered(_problem(rules, completion))


async def _run_tools(conversation: Conversation, calls: list[ToolCall], turn: int, call_tool: CallTool) -> None:
    names = [_name_and_arguments(call) for call in calls]
    results = await asyncio.gather(
        *(call_tool(turn, index, name, arguments) for index, (name, arguments) in enumerate(names))
    )
    for call, result in zip(calls, results, strict=True):
        conversation.add({"role": "tool", "tool_call_id": _call_id(call), "content": result.content})
    num_errors = sum(result.error_kind is not None for result in results)
    conversation.turns[turn] = dataclasses.replace(conversation.turns[turn], num_tool_errors=num_errors)


def _cut_short(completion: Completion) -> Ending | None:
    reason = completion.turn.finish_reason.lower()
    if reason in CUT_REASONS:
        return Ending(StopReason.LENGTH)
    return Ending(StopReason.CONTENT_FILTER) if reason.startswith(WITHHELD_REASONS) else None


def _problem(rules: AgentRules, completion: Completion) -> str | None:
    return None if rules.answer_schema is None else rules.answer_schema.problem(completion.message)


def _answered(problem: str | None) -> Ending:
    if problem is None:
        return Ending(StopReason.ANSWERED)
    return Ending(StopReason.INVALID, {"kind": StopReason.INVALID.value, "message": problem})


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
