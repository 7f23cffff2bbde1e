"""Tool loops at endpoints that are strict in their own ways, over a real server on loopback."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from stillhouse.config import RolloutsConfig
from stillhouse.types import StopReason
from tests.provider import ReceivedRequest, Reply, SimulatedProvider, completion

Collect = Callable[..., Any]
Check = Callable[[list[Any]], str | dict[str, Any] | None]
CALL = ("calculator", '{"expression": "1+1"}')


def calls_in(messages: list[Any]) -> list[Any]:
    return [call for message in messages for call in message.get("tool_calls") or ()]


def wants_objects(messages: list[Any]) -> str | None:
    arguments = [call["function"]["arguments"] for call in calls_in(messages)]
    return None if all(isinstance(json.loads(text), dict) for text in arguments) else "arguments must be an object"


def wants_ids(messages: list[Any]) -> str | None:
    ids = [call.get("id") for call in calls_in(messages)]
    answered = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
    return None if all(ids) and len(set(ids)) == len(ids) and answered == ids else "tool_use ids must be unique"


def wants_content(messages: list[Any]) -> str | None:
    return None if all("content" in message for message in messages) else "missing field `content`"


def wants(value: Any, *path: str) -> Check:
    def check(messages: list[Any]) -> str | None:
        for one in calls_in(messages) if path[0] == "extra_content" else [m for m in messages if "tool_calls" in m]:
            for key in path:
                one = one.get(key) if isinstance(one, dict) else None
            if one != value:
                return f"The `{path[-1]}` in the thinking mode must be passed back to the API."
        return None

    return check


def refuses(key: str, error: Any) -> Check:
    """Return the seller's words for a key that it does not know, in an assistant's message or a call of it."""
    return lambda messages: error if any(key in one for one in [*messages, *calls_in(messages)]) else None


def extra_forbidden(key: str) -> dict[str, Any]:
    detail = {"type": "extra_forbidden", "loc": ["body", "messages", 1, "assistant", key], "input": "hm" * 400}
    return {"detail": [{**detail, "msg": "Extra inputs are not permitted"}]}


CEREBRAS = {
    "message": "messages.1.assistant.reasoning_content: property 'messages.1.assistant.reasoning_content' is "
    "unsupported",
    "type": "invalid_request_error",
    "param": "validation_error",
    "code": "wrong_api_format",
}
GROQ = (
    "'messages.1' : for 'role:assistant' the following must be satisfied[('messages.1' : property 'reasoning_content' "
    "is unsupported)]"
)
PYDANTIC = (
    "1 validation error for ChatCompletionRequest\nmessages.1.assistant.reasoning_details\n  Extra inputs are not "
    "permitted [type=extra_forbidden, input_value=[], input_type=list]"
)
GEMINI = "Invalid JSON payload received. Unknown name \"reasoning_content\" at 'messages[1]': Cannot find field."


def call(arguments: Any = CALL[1], **rest: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "calculator", "arguments": arguments}, "id": "c", **rest}


SIGNED = {"google": {"thought_signature": "abc"}}
DETAILS = [{"type": "reasoning.encrypted", "data": "x/y=", "id": None, "index": 0}]
BLOCKS = [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "Let me see."}]


@pytest.mark.parametrize(
    ("message", "check", "num_refused"),
    [
        ({"tool_calls": [call({"expression": "1+1"})]}, wants_objects, 0),
        ({"tool_calls": [call('"{\\"expression\\": \\"1+1\\"}"')]}, wants_objects, 0),
        *(({"tool_calls": [call(id=one), call(id=one)]}, wants_ids, 0) for one in (None, "", "call_0")),
        ({"content": None, "tool_calls": [call()]}, wants_content, 0),
        ({"content": None, "tool_calls": [call()], "reasoning_content": "hm"}, wants("hm", "reasoning_content"), 0),
        ({"tool_calls": [call()], "reasoning": "hm"}, refuses("reasoning_content", GROQ), 0),
        ({"tool_calls": [call()], "reasoning_details": DETAILS}, wants(DETAILS, "reasoning_details"), 0),
        ({"tool_calls": [call(extra_content=SIGNED)]}, wants("abc", "extra_content", "google", "thought_signature"), 0),
        ({"tool_calls": [call()], "thinking_blocks": BLOCKS[:1]}, wants(BLOCKS[:1], "thinking_blocks"), 0),
        *(
            ({"tool_calls": [call()], key: value}, refuses(key, extra_forbidden(key)), 0)
            for key, value in (("annotations", []), ("audio", None), ("provider_specific_fields", {"a": 1}))
        ),
        ({"tool_calls": [call(index=0)]}, refuses("index", extra_forbidden("index")), 0),
        *(
            ({"tool_calls": [call()], "reasoning_content": "hm"}, refuses("reasoning_content", body), 1)
            for body in (extra_forbidden("reasoning_content"), CEREBRAS, GROQ, GEMINI)
        ),
        ({"tool_calls": [call()], "reasoning_details": DETAILS}, refuses("reasoning_details", PYDANTIC), 1),
        ({"tool_calls": [call(extra_content=SIGNED)]}, refuses("extra_content", extra_forbidden("extra_content")), 1),
    ],
)
def test_a_tool_loop_goes_on_at_an_endpoint_that_is_strict(
    collect: Collect, message: dict[str, Any], check: Check, num_refused: int
) -> None:
    refusals: list[Any] = []

    def answer(request: ReceivedRequest) -> Reply:
        messages = request.body["messages"]
        if (problem := check(messages)) is not None:
            refusals.append(problem)
            status = 422 if isinstance(problem, dict) and "detail" in problem else 400
            return Reply(problem if isinstance(problem, dict) else {"error": {"message": problem}}, status=status)
        turn = sum(one["role"] == "assistant" for one in messages)
        # Twice, so that what was learnt and the ids of all turns count.
        return Reply(completion(message=message) if turn < 2 else completion("2"))

    with SimulatedProvider(answer) as provider:
        got = collect(provider.url, 1, config=RolloutsConfig(max_tokens=200))
    (row,) = got.trajectories
    assert (row.stop_reason, row.error) == (StopReason.ANSWERED, None)
    assert [one["content"] for one in row.messages if one["role"] == "tool"] == ["2"] * len(calls_in(row.messages))
    assert len(refusals) == num_refused


def test_a_key_that_is_demanded_and_missing_is_not_taken_away(collect: Collect) -> None:
    demand = "The `reasoning_content` in the thinking mode must be passed back to the API: unknown state"

    def answer(request: ReceivedRequest) -> Reply:
        if len(request.body["messages"]) > 1:
            return Reply({"error": {"message": demand}}, status=400)
        return Reply(completion(message={"tool_calls": [call()], "reasoning_content": "hm"}))

    with SimulatedProvider(answer) as provider:
        (row,) = collect(provider.url, 1, config=RolloutsConfig(max_tokens=200)).trajectories
        assert len(provider.requests) == 2
    assert row.stop_reason is StopReason.ERROR


def test_behind_a_router_one_seller_gets_back_what_another_refuses(collect: Collect) -> None:
    def answer(request: ReceivedRequest) -> Reply:
        messages = request.body["messages"]
        if len(messages) == 1:
            return Reply(completion(message={"tool_calls": [call()], "reasoning_content": "hm"}))
        refusing = len(provider.requests) == 2
        if refusing and "reasoning_content" in messages[1]:
            return Reply(extra_forbidden("reasoning_content"), status=422)
        if not refusing and "reasoning_content" not in messages[1]:
            return Reply({"error": {"message": "reasoning_content is missing in the assistant's message"}}, status=400)
        return Reply(completion("2"))

    with SimulatedProvider(answer) as provider:
        (row,) = collect(provider.url, 1, config=RolloutsConfig(max_tokens=200)).trajectories
        assert len(provider.requests) == 4
    assert row.stop_reason is StopReason.ANSWERED


@pytest.mark.parametrize("content", ["<think>hm</think>Let me see.", BLOCKS, [BLOCKS[1]]])
def test_thinking_within_the_content_goes_back_as_it_came(collect: Collect, content: Any) -> None:
    def answer(request: ReceivedRequest) -> Reply:
        done = len(request.body["messages"]) > 1
        return Reply(completion("2") if done else completion(message={"tool_calls": [call()], "content": content}))

    with SimulatedProvider(answer) as provider:
        (row,) = collect(provider.url, 1, config=RolloutsConfig(max_tokens=200)).trajectories
        sent = provider.requests[-1]["messages"][1]
    assert row.messages[1]["content"] == "Let me see."
    assert sent["content"] == ("Let me see." if content == [BLOCKS[1]] else content)
    assert sent.keys() == {"role", "content", "tool_calls"}
