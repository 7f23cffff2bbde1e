import asyncio
import json
from typing import Any
from unittest.mock import ANY

import pytest

from stillhouse.agent.loop import Conversation, run_agent
from stillhouse.agent.turns import REFUSAL, End, TurnRules, TurnState, next_action
from stillhouse.config import RolloutsConfig
from stillhouse.inference.apis.chat_answer import read_completion
from stillhouse.inference.completion import Completion
from stillhouse.inference.sampling import ChatRequest, Sampling, ToolChoice
from stillhouse.inference.transport import HttpAnswer
from stillhouse.store import canonical_json, digest
from stillhouse.tools import Toolbox, ToolResult
from stillhouse.tools.calculator import calculator
from stillhouse.types import Message, StopReason
from tests.provider import completion

MESSAGES: list[Message] = [
    {"role": "user", "content": "café \ud83d 1"},
    {"role": "assistant", "content": None, "reasoning_details": [{"data": "opaque", "index": 0}]},
    {"role": "user", "content": "go on"},
]
NUMBER = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}


def parsed(body: dict[str, Any]) -> Completion:
    request = ChatRequest([], [], Sampling(None, None, 1000, None))
    return read_completion(body, HttpAnswer(b"", {}, 0.1), request, "m")


class Played:
    """The outcome of a script: the conversation, how it ended, the calls that ran, and how each turn was asked for."""

    def __init__(self, answers: list[dict[str, Any]], *, offers_tools: bool = True, **config: Any) -> None:
        self.conversation = Conversation([{"role": "user", "content": "go"}])
        self.calls: list[Any] = []
        self.asked: list[tuple[int, ToolChoice]] = []
        self._toolbox = Toolbox([calculator])
        self._answers = answers
        rollouts = RolloutsConfig.model_validate({"closing_answer": False, **config})
        rules, state = TurnRules.of(rollouts), TurnState(rollouts.max_turns, offers_tools)
        self.ending: End = asyncio.run(
            run_agent(self.conversation, rules, state, complete=self._complete, call_tool=self._call_tool)
        )

    @property
    def stop(self) -> StopReason:
        return self.ending.stop_reason

    @property
    def contents(self) -> list[Any]:
        return [message.get("content") for message in self.conversation.messages]

    @property
    def roles(self) -> list[str]:
        return [message["role"] for message in self.conversation.messages]

    async def _complete(self, turn: int, tool_choice: ToolChoice) -> Completion:
        self.asked.append((turn, tool_choice))
        return parsed(self._answers[turn])

    async def _call_tool(self, turn: int, index: int, name: str, arguments: str) -> ToolResult:
        self.calls.append((turn, index, name, arguments))
        # Later calls end first.
        await asyncio.sleep(0.01 / (index + 1))
        return await self._toolbox.call(name, arguments)


def sums(*expressions: str) -> dict[str, Any]:
    return completion(tool_calls=[("calculator", json.dumps({"expression": text})) for text in expressions])


def test_it_ends_when_the_model_answers() -> None:
    played = Played([sums("1+1"), sums("2+2"), completion("four")])
    assert played.stop is StopReason.ANSWERED
    assert played.roles == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert played.contents[2:5:2] == ["2", "4"]
    assert len(played.conversation.turns) == 3
    assert [(turn, index) for turn, index, *_ in played.calls] == [(0, 0), (1, 0)]
    assert played.asked == [(0, "auto"), (1, "auto"), (2, "auto")]


def test_calls_of_one_turn_run_together_and_answer_in_order() -> None:
    played = Played([sums("1", "2", "3"), completion("done")])
    replies = played.conversation.messages[2:5]
    assert [reply["tool_call_id"] for reply in replies] == ["call_0", "call_1", "call_2"]
    assert played.contents[2:5] == ["1", "2", "3"]
    assert len(played.calls) == 3


def test_a_closing_answer_follows_the_refusal_of_the_last_turns_calls() -> None:
    played = Played([sums("1"), sums("2", "3"), completion("five")], max_turns=2, closing_answer=True)
    assert played.stop is StopReason.ANSWERED
    assert played.roles == ["user", "assistant", "tool", "assistant", "tool", "tool", "assistant"]
    assert played.contents[4:] == [REFUSAL, REFUSAL, "five"]
    assert [reply["tool_call_id"] for reply in played.conversation.messages[4:6]] == ["call_0", "call_1"]
    assert played.asked == [(0, "auto"), (1, "auto"), (2, "none")]
    assert len(played.calls) == 1
    turns = played.conversation.turns
    assert [(turn.num_refused_calls, turn.num_tool_errors) for turn in turns] == [(0, 0), (2, 0), (0, 0)]


NO_TURN_LEFT: dict[str, Any] = {"response_schema": NUMBER, "max_turns": 1}
FIVE = completion('{"sum": 5}')


@pytest.mark.parametrize(
    ("answers", "config", "stop"),
    [
        ([sums("1"), completion("one")], {"max_turns": 2, "closing_answer": True}, StopReason.ANSWERED),
        ([sums("1"), sums("2")], {"max_turns": 2}, StopReason.MAX_TURNS),
        ([sums("1"), sums("2")], {"max_turns": 1, "closing_answer": True}, StopReason.MAX_TURNS),
        ([sums("1")], {"max_turns": 1, "closing_answer": True, "offers_tools": False}, StopReason.MAX_TURNS),
        ([completion("five")], NO_TURN_LEFT, StopReason.INVALID),
        ([sums("2+3"), FIVE], {**NO_TURN_LEFT, "closing_answer": True}, StopReason.ANSWERED),
        ([sums("2+3"), completion("five")], {**NO_TURN_LEFT, "closing_answer": True}, StopReason.INVALID),
    ],
    ids=[
        *("answered within the turns", "no closing answer", "a closing answer that calls tools all the same"),
        *("no closing answer without tools", "a correction takes a turn"),
        *("a closing answer that meets the schema", "one that misses it"),
    ],
)
def test_the_last_turn_decides(answers: list[dict[str, Any]], config: dict[str, Any], stop: StopReason) -> None:
    played = Played(answers, **config)
    assert (played.stop, len(played.asked)) == (stop, len(answers))
    # Calls of the last turns are left unanswered.
    if stop is StopReason.MAX_TURNS:
        assert played.conversation.messages[-1]["tool_calls"]
        assert len(played.calls) == config["max_turns"] - 1


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("max_tokens", StopReason.LENGTH), ("content_filter: RECITATION", StopReason.CONTENT_FILTER)],
)
def test_a_completion_that_was_cut_ends_it_even_with_a_call(reason: str, expected: StopReason) -> None:
    body = completion("half", tool_calls=[("calculator", '{"expr')], finish_reason=reason)
    played = Played([body], max_turns=1, closing_answer=True)
    assert played.stop is expected
    assert played.calls == []
    assert played.conversation.turns[0].finish_reason == reason


@pytest.mark.parametrize(
    ("reason", "config"), [("eos", {}), ("end_turn", {}), ("Brand", {"finish_reasons": ["Brand"]})]
)
def test_a_known_finish_reason_ends_a_completion_and_is_kept(reason: str, config: dict[str, Any]) -> None:
    called = {**sums("1")}
    called["choices"][0]["finish_reason"] = reason
    played = Played([called, completion("one", finish_reason=reason)], **config)
    assert played.stop is StopReason.ANSWERED
    assert len(played.calls) == 1
    assert [turn.finish_reason for turn in played.conversation.turns] == [reason, reason]


def test_after_a_finish_reason_that_nobody_knows_nothing_follows_and_the_word_is_named() -> None:
    called = {**sums("1")}
    called["choices"][0]["finish_reason"] = "Brand"
    played = Played([called, completion("one")])
    assert (played.stop, played.calls) == (StopReason.UNFINISHED, [])
    assert played.ending.error is not None
    assert played.ending.error["kind"] == "unfinished"
    assert "'Brand'" in played.ending.error["message"]
    assert "rollouts.finish_reasons" in played.ending.error["message"]


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("abort", StopReason.UNFINISHED), ("MALFORMED_FUNCTION_CALL", StopReason.MALFORMED)],
)
def test_a_journal_of_before_may_hold_completions_that_are_asked_again_today(reason: str, expected: StopReason) -> None:
    assert next_action(TurnRules(), TurnState(3, False), {"role": "assistant"}, reason)[1] == (expected, ANY)


@pytest.mark.parametrize(
    "broken",
    [
        {"id": "c", "type": "function", "function": {"name": "calculator", "arguments": '{"expression": "1+'}},
        {"id": "c", "type": "function", "function": {"arguments": "{}"}},
        {"id": "c", "type": "function"},
        "calculator(1)",
    ],
)
def test_a_broken_call_is_answered_with_an_error_and_counted(broken: Any) -> None:
    played = Played([completion(message={"tool_calls": [broken]}), completion("sorry")])
    assert played.stop is StopReason.ANSWERED
    reply = played.conversation.messages[2]
    assert reply["role"] == "tool"
    assert "error" in json.loads(reply["content"] or "")
    assert [turn.num_tool_errors for turn in played.conversation.turns] == [1, 0]
    assert played.conversation.messages[1]["tool_calls"] == [broken]


def test_an_answer_that_misses_the_schema_is_corrected() -> None:
    played = Played([completion('{"sum": "five"}'), completion('{"sum": 5}')], response_schema=NUMBER)
    assert played.ending == End(StopReason.ANSWERED)
    correction = played.conversation.messages[2]
    assert correction["role"] == "user"
    assert all(part in str(correction["content"]) for part in ("$.sum", '"five"', '"type":"integer"', '"required"'))


def test_after_the_last_correction_the_rollout_is_invalid_and_says_why() -> None:
    answers = [completion("five"), completion('{"total": 5}'), completion('{"sum": 5.5}')]
    played = Played(answers, response_schema=NUMBER, max_corrections=2)
    assert played.stop is StopReason.INVALID
    assert played.ending.error is not None
    assert played.ending.error["kind"] == "invalid"
    assert "$.sum" in played.ending.error["message"]
    assert len(played.asked) == 3


def test_what_was_said_stays_when_a_callable_raises() -> None:
    conversation = Conversation([{"role": "user", "content": "go"}])

    async def complete(turn: int, tool_choice: ToolChoice) -> Completion:
        if turn:
            raise OSError("gone")
        return parsed(sums("1"))

    async def call_tool(turn: int, index: int, name: str, arguments: str) -> ToolResult:
        return ToolResult("1", None, 0.0)

    with pytest.raises(OSError, match="gone"):
        asyncio.run(run_agent(conversation, TurnRules(), TurnState(5, True), complete=complete, call_tool=call_tool))
    assert len(conversation.messages) == 3
    assert len(conversation.turns) == 1


def test_a_digest_that_grew_is_that_of_all_messages() -> None:
    grown = Conversation(MESSAGES[:1])
    for count in range(1, 4):
        assert grown.digest.of_request() == digest(MESSAGES[:count])
        if count < 3:
            grown.add(MESSAGES[count])
    assert Conversation([]).digest.of_request() == digest([])
    assert grown.digest.num_characters == sum(len(canonical_json(message)) for message in MESSAGES)


def test_opaque_reasoning_and_a_bound_of_tokens_are_part_of_a_request() -> None:
    other: Message = {**MESSAGES[1], "reasoning_details": [{"data": "opaque", "index": 1}]}
    one, another = Conversation(MESSAGES[:2]).digest, Conversation([MESSAGES[0], other]).digest
    assert len({one.of_request(), one.of_request(10), one.of_request(11), another.of_request()}) == 4
