import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from stillhouse.agent.turns import Ask, End, TurnRules, TurnState, next_action
from stillhouse.errors import ConfigError
from stillhouse.inference.anthropic_client import AnthropicClient
from stillhouse.inference.apis.messages import Messages
from stillhouse.inference.completion import Completion, decode_completion, encode_completion
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import FailureKind, RequestFailed
from stillhouse.inference.finish_reasons import stop_of
from stillhouse.inference.model_client import ModelClient
from stillhouse.inference.sampling import ChatRequest, Sampling
from stillhouse.inference.transport import HttpAnswer
from stillhouse.types import StopReason
from tests.fake_messages import FakeMessages
from tests.provider import SimulatedProvider

Message = dict[str, Any]
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}},
    }
]
AS_IT_IS: dict[str, Any] = {"temperature": None, "top_p": None, "max_tokens": 500, "seed": 3}
ASKED: list[Any] = [{"role": "user", "content": "What is there?"}]
HOME = Endpoint("https://api.anthropic.com/v1", "claude-opus-5", "m")


@pytest.fixture
def model() -> FakeMessages:
    """A model that looks twice, with two calls at first, and then answers with what it saw."""

    def answer(messages: Sequence[Message]) -> str | list[tuple[str, Message]]:
        blocks = [block for message in messages for block in message["content"]]
        results = [block["content"] for block in blocks if block["type"] == "tool_result"]
        if len(results) < 3:
            return [("look", {"at": index, "é": 1.0}) for index in range(1 if results else 2)]
        return " and ".join(results)

    return FakeMessages(answer)


@pytest.fixture
def endpoint(model: FakeMessages) -> Iterator[Endpoint]:
    with SimulatedProvider(model) as provider:
        yield Endpoint(provider.url, "claude-opus-5", "m", "key-of-some-length", api="messages")


def ask(endpoint: Endpoint, messages: list[Any], tools: list[Any] = TOOLS, **settings: Any) -> Completion:
    async def main() -> Completion:
        async with aclosing(ModelClient(endpoint, AnthropicClient(endpoint, timeout_s=10))) as client:
            return await client.complete(ChatRequest(messages, tools, Sampling(**AS_IT_IS | settings)))

    return asyncio.run(main())


def answered(**body: Any) -> Completion:
    content = json.dumps({"type": "message", "model": "m", "content": [{"type": "text", "text": "so"}], **body})
    return Messages(HOME).completion(HttpAnswer(content.encode(), {}, 0.1), ChatRequest([], [], Sampling(**AS_IT_IS)))


def body_of(messages: list[Any], tools: list[Any] = TOOLS, **settings: Any) -> Message:
    return Messages(HOME).body(ChatRequest(messages, tools, Sampling(**AS_IT_IS | settings)))


def loop(endpoint: Endpoint, changed: Callable[[Message], Message] = lambda message: message) -> list[Message]:
    """Return the conversation of a loop whose tool says what it was called with; each message goes by the journal."""
    messages: list[Message] = [{"role": "system", "content": "Look."}, *ASKED]
    while True:
        message: Any = decode_completion(encode_completion(ask(endpoint, messages))).message
        messages.append(changed(message))
        if "tool_calls" not in message:
            return messages
        for call in messages[-1]["tool_calls"]:
            result = f"saw {call['function']['arguments']}"
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


@pytest.mark.parametrize("shows_thinking", [True, False])
def test_a_tool_loop_sends_back_signed_thinking_to_the_byte_and_ends_in_the_form_that_training_reads(
    endpoint: Endpoint, model: FakeMessages, shows_thinking: bool
) -> None:
    model.shows_thinking = shows_thinking
    messages = loop(endpoint)
    assert [message["role"] for message in messages[2:]] == [
        *("assistant", "tool", "tool", "assistant", "tool", "assistant")
    ]
    assert messages[2]["tool_calls"][1]["function"] == {"name": "look", "arguments": '{"at":1,"é":1.0}'}
    last = {key: value for key, value in messages[-1].items() if key != "sent_back"}
    assert last["content"].startswith('saw {"at":0')
    assert last.get("reasoning_content") == ("weighed it é\u2028" if shows_thinking else None)
    assert set(last) <= {"role", "content", "reasoning_content"}


def test_calls_that_were_given_other_ids_are_sent_back_as_the_model_wrote_them(endpoint: Endpoint) -> None:
    def renamed(message: Message) -> Message:
        calls = [{**call, "id": f"own{index}"} for index, call in enumerate(message.get("tool_calls", ()))]
        return {**message, "tool_calls": calls} if calls else message

    assert "saw" in loop(endpoint, renamed)[-1]["content"]


def test_usage_and_facts_are_those_of_the_message(endpoint: Endpoint) -> None:
    turn = ask(endpoint, ASKED).turn
    assert (turn.usage["prompt_tokens"], turn.usage["completion_tokens"], turn.usage["cached_tokens"]) == (90, 30, 60)
    assert (turn.model, turn.finish_reason) == ("claude-opus-5", "tool_use")
    assert turn.request_id in ("req_0", "msg_0")


def test_results_of_tools_and_what_the_user_adds_are_one_message_results_first() -> None:
    call = {"type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
    messages = [
        *ASKED,
        {"role": "assistant", "content": "", "tool_calls": [{**call, "id": "a"}, {**call, "id": "b"}]},
        {"role": "tool", "tool_call_id": "a", "content": "seen"},
        {"role": "tool", "tool_call_id": "b", "content": '{"error": "dark"}'},
        {"role": "user", "content": "Go on."},
    ]
    asked, called, told = body_of(messages)["messages"]
    assert [block["id"] for block in called["content"]] == ["a", "b"]
    assert called["content"][0]["input"] == {"at": 1}
    assert [block["type"] for block in told["content"]] == ["tool_result", "tool_result", "text"]
    assert [block.get("is_error") for block in told["content"]] == [None, True, None]
    assert asked["role"] == told["role"] == "user"


def test_messages_without_a_word_are_left_out() -> None:
    blank: list[Any] = [{"role": "system", "content": " \n"}, *ASKED, {"role": "assistant", "content": ""}, *ASKED]
    body = body_of(blank)
    assert "system" not in body
    assert [block["type"] for [message] in [body["messages"]] for block in message["content"]] == ["text", "text"]


def test_effort_schema_and_a_closing_answer_are_asked_for_in_the_words_of_this_api(
    endpoint: Endpoint, model: FakeMessages
) -> None:
    schema = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    body = body_of(ASKED, reasoning_effort="high", response_schema=schema, tool_choice="none")
    assert model.problem(body) is None
    assert body["thinking"] == {"type": "adaptive", "display": "summarized"}
    assert body["output_config"] == {"effort": "high", "format": {"type": "json_schema", "schema": schema}}
    assert body["tool_choice"] == {"type": "none"}
    assert body_of(ASKED, reasoning_effort="none")["thinking"] == {"type": "disabled"}
    extra = {"output_config": {"effort": "max"}, "thinking": {"type": "enabled", "budget_tokens": 2000}}
    assert body_of(ASKED, response_schema=schema, extra_body=extra)["output_config"].keys() == {"effort", "format"}


@pytest.mark.parametrize(
    "settings",
    [{"reasoning_effort": "minimal"}, {"record_top_k": 5}],
)
def test_what_anthropic_lacks_is_refused_by_name_before_anything_is_sent(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=str(next(iter(settings)))):
        body_of(ASKED, **settings)


@pytest.mark.parametrize("key", ["stop", "seed", "response_format", "logprobs", "n"])
def test_a_key_of_chat_completions_is_refused_by_name(endpoint: Endpoint, key: str) -> None:
    with pytest.raises(RequestFailed, match=key) as refused:
        ask(endpoint, ASKED, extra_body={key: 1})
    assert refused.value.failure.kind is FailureKind.PERMANENT


def test_an_image_is_refused_with_a_sentence() -> None:
    parts = [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}]
    with pytest.raises(RequestFailed, match="image_url") as refused:
        body_of([{"role": "user", "content": parts}])
    assert refused.value.failure.kind is FailureKind.PERMANENT


def test_what_all_rollouts_share_is_marked_for_the_cache_where_it_is_long() -> None:
    long = [{"role": "system", "content": "Be kind. " * 500}, *ASKED]
    marks = {"type": "ephemeral"}
    body = body_of(long)
    # The next turn sends all of this one again.
    assert body["cache_control"] == body["system"][-1]["cache_control"] == marks
    assert "cache_control" not in body_of(long, [])
    assert body_of(long, [])["system"][-1]["cache_control"] == marks
    assert "cache_control" not in json.dumps(body_of([{"role": "system", "content": "Be kind."}, *ASKED], []))
    wide = {"type": "function", "function": {"name": "look", "description": "Looks. " * 500}}
    assert body_of(ASKED, [*TOOLS, wide])["tools"][-1]["cache_control"] == marks


@pytest.mark.parametrize(
    ("body", "finish_reason", "stop"),
    [
        ({"stop_reason": "end_turn"}, "end_turn", StopReason.ANSWERED),
        ({"stop_reason": "stop_sequence"}, "stop_sequence", StopReason.ANSWERED),
        ({"stop_reason": "max_tokens"}, "max_tokens", StopReason.LENGTH),
        ({"stop_reason": "model_context_window_exceeded"}, "model_context_window_exceeded", StopReason.LENGTH),
        ({"stop_reason": "refusal"}, "refusal", StopReason.CONTENT_FILTER),
        (
            {"stop_reason": "refusal", "stop_details": {"type": "refusal", "category": "bio"}, "content": []},
            "refusal: bio",
            StopReason.CONTENT_FILTER,
        ),
    ],
)
def test_why_a_message_ended(body: Message, finish_reason: str, stop: StopReason) -> None:
    turn = answered(**body).turn
    assert turn.finish_reason == finish_reason
    assert stop_of(finish_reason) is stop


@pytest.mark.parametrize("category", ["frontier_llm", "reasoning_extraction"])
def test_a_refusal_by_which_the_seller_objects_to_the_use_is_said(
    category: str, caplog: pytest.LogCaptureFixture
) -> None:
    answered(stop_reason="refusal", stop_details={"type": "refusal", "category": category}, content=[])
    assert category in caplog.text
    assert "terms" in caplog.text


def test_a_turn_that_ends_without_a_word_is_an_answer() -> None:
    usage = {"input_tokens": 9, "output_tokens": 3}
    assert answered(stop_reason="end_turn", content=[], usage=usage).message["content"] == ""


def test_a_paused_turn_goes_on_once_it_is_sent_back() -> None:
    blocks = [{"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}}]
    completion = answered(stop_reason="pause_turn", content=blocks)
    state = TurnState(3, offers_tools=False)
    message, reason = completion.message, completion.turn.finish_reason
    state, action = next_action(TurnRules(), state, message, reason)
    assert action == Ask([])
    assert body_of([*ASKED, message])["messages"][-1] == {"role": "assistant", "content": blocks}
    _, action = next_action(TurnRules(), TurnState(1, offers_tools=False), message, reason)
    assert action == End(StopReason.MAX_TURNS)


def test_a_service_tier_is_asked_for_by_anthropics_name_and_one_that_it_lacks_is_refused() -> None:
    def tier(name: str | None) -> str | None:
        return (
            Messages(replace(HOME, service_tier=name))
            .body(ChatRequest(ASKED, [], Sampling(**AS_IT_IS)))
            .get("service_tier")
        )

    assert [tier(name) for name in ("auto", "default", None)] == ["auto", "standard_only", None]
    with pytest.raises(ConfigError, match=r"teacher\.service_tier 'flex'"):
        tier("flex")
