import asyncio
import json
from typing import Any

import pytest

from benchmarks.simulated_provider import completion
from stillhouse.rollouts.agent import Conversation, run_agent
from stillhouse.rollouts.completion import Completion, read_completion
from stillhouse.tools import Toolbox, ToolResult
from stillhouse.tools.calculator import calculator
from stillhouse.types import Message, StopReason


def said(body: dict[str, Any]) -> Completion:
    return read_completion(json.dumps(body).encode(), {}, latency_s=0.1, model="m", record_tokens=False)


def play(answers: list[dict[str, Any]], *, max_turns: int = 10) -> tuple[Conversation, StopReason, list[Any]]:
    """Runs the loop on scripted completions and the real calculator."""
    toolbox = Toolbox([calculator])
    conversation = Conversation([{"role": "user", "content": "go"}])
    calls: list[Any] = []

    async def complete(turn: int, messages: list[Message]) -> Completion:
        return said(answers[turn])

    async def call_tool(turn: int, index: int, name: str, arguments: str) -> ToolResult:
        calls.append((turn, index, name, arguments))
        # Later calls end first.
        await asyncio.sleep(0.01 / (index + 1))
        return await toolbox.call(name, arguments)

    stop = asyncio.run(run_agent(conversation, complete=complete, call_tool=call_tool, max_turns=max_turns))
    return conversation, stop, calls


def sums(*expressions: str) -> dict[str, Any]:
    return completion(tool_calls=[("calculator", json.dumps({"expression": text})) for text in expressions])


def test_it_ends_when_the_model_answers() -> None:
    conversation, stop, calls = play([sums("1+1"), sums("2+2"), completion("four")])
    assert stop is StopReason.ANSWERED
    assert [message["role"] for message in conversation.messages] == [
        *("user", "assistant", "tool", "assistant", "tool", "assistant"),
    ]
    assert [message["content"] for message in conversation.messages if message["role"] == "tool"] == ["2", "4"]
    assert len(conversation.turns) == 3
    assert [(turn, index) for turn, index, *_ in calls] == [(0, 0), (1, 0)]


def test_calls_of_one_turn_run_together_and_answer_in_order() -> None:
    conversation, _, calls = play([sums("1", "2", "3"), completion("done")])
    results = [(one["tool_call_id"], one["content"]) for one in conversation.messages if one["role"] == "tool"]
    assert results == [("call_0", "1"), ("call_1", "2"), ("call_2", "3")]
    assert len(calls) == 3


def test_at_the_last_turn_calls_are_left_unanswered() -> None:
    conversation, stop, calls = play([sums("1"), sums("2")], max_turns=2)
    assert stop is StopReason.MAX_TURNS
    assert conversation.messages[-1]["tool_calls"]
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("reason", "expected"), [("length", StopReason.LENGTH), ("content_filter", StopReason.CONTENT_FILTER)]
)
def test_a_completion_that_was_cut_ends_it_even_with_a_call(reason: str, expected: StopReason) -> None:
    body = completion("half", tool_calls=[("calculator", '{"expr')], finish_reason=reason)
    conversation, stop, calls = play([body])
    assert stop is expected
    assert calls == []
    assert conversation.turns[0].finish_reason == reason


@pytest.mark.parametrize(
    "broken",
    [
        {"id": "c", "type": "function", "function": {"name": "calculator", "arguments": '{"expression": "1+'}},
        {"id": "c", "type": "function", "function": {"name": "calculator", "arguments": {"expression": "1"}}},
        {"id": "c", "type": "function", "function": {"name": "calculator", "arguments": ""}},
        {"id": "c", "type": "function", "function": {"arguments": "{}"}},
        {"id": "c", "type": "function"},
        "calculator(1)",
    ],
)
def test_a_broken_call_is_answered_with_an_error_and_counted(broken: Any) -> None:
    conversation, stop, _ = play([completion(message={"tool_calls": [broken]}), completion("sorry")])
    assert stop is StopReason.ANSWERED
    reply = conversation.messages[2]
    assert reply["role"] == "tool"
    assert "error" in json.loads(reply["content"] or "")
    assert [turn.num_tool_errors for turn in conversation.turns] == [1, 0]
    assert conversation.messages[1]["tool_calls"] == [broken]


def test_what_was_said_stays_when_a_callable_raises() -> None:
    conversation = Conversation([{"role": "user", "content": "go"}])

    async def complete(turn: int, messages: list[Message]) -> Completion:
        if turn:
            raise OSError("gone")
        return said(sums("1"))

    async def call_tool(turn: int, index: int, name: str, arguments: str) -> ToolResult:
        return ToolResult("1", None, 0.0)

    with pytest.raises(OSError, match="gone"):
        asyncio.run(run_agent(conversation, complete=complete, call_tool=call_tool, max_turns=5))
    assert len(conversation.messages) == 3
    assert len(conversation.turns) == 1
