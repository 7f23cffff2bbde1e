import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from stillhouse.inference.apis import ApiChoice
from stillhouse.inference.apis.responses import Responses
from stillhouse.inference.completion import Completion, decode_completion, encode_completion
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import FailureKind, RequestFailed
from stillhouse.inference.finish_reasons import stop_of
from stillhouse.inference.http_client import HttpClient
from stillhouse.inference.model_client import ModelClient
from stillhouse.inference.sampling import ChatRequest, Sampling
from stillhouse.inference.transport import HttpAnswer
from stillhouse.types import StopReason
from tests.fake_responses import FakeResponses
from tests.provider import SimulatedProvider

Message = dict[str, Any]
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}},
    }
]
# Reasoning models are sampled as they are.
AS_IT_IS: dict[str, Any] = {"temperature": None, "top_p": None, "max_tokens": 500, "seed": 3}


@pytest.fixture
def model() -> FakeResponses:
    """A model that looks twice, with two calls at first, and then answers with what it saw."""

    def answer(items: Sequence[Message]) -> str | list[tuple[str, Message]]:
        results = [item["output"] for item in items if item["type"] == "function_call_output"]
        if len(results) < 3:
            return [("look", {"at": str(index)}) for index in range(1 if results else 2)]
        return " and ".join(results)

    return FakeResponses(answer)


@pytest.fixture
def endpoint(model: FakeResponses) -> Iterator[Endpoint]:
    with SimulatedProvider(model) as provider:
        yield Endpoint(provider.url, "gpt-5-pro", "m", "key-of-some-length", api="responses")


def ask(endpoint: Endpoint, messages: list[Any], tools: list[Any] = TOOLS, **settings: Any) -> Completion:
    async def main() -> Completion:
        async with aclosing(ModelClient(endpoint, HttpClient(endpoint, timeout_s=10))) as client:
            return await client.complete(ChatRequest(messages, tools, Sampling(**AS_IT_IS | settings)))

    return asyncio.run(main())


def answered(body: Message, **settings: Any) -> Completion:
    content = json.dumps({"object": "response", "status": "completed", "model": "m", **body}).encode()
    endpoint = Endpoint("https://api.openai.com/v1", "m", "m")
    return Responses(endpoint).completion(
        HttpAnswer(content, {}, 0.1), ChatRequest([], [], Sampling(**AS_IT_IS | settings))
    )


def text_item(text: str, **keys: Any) -> Message:
    part = {"type": "output_text", "annotations": [], "text": text}
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part], **keys}


def loop(
    endpoint: Endpoint, changed: Callable[[Message], Message] = lambda message: message, **settings: Any
) -> list[Message]:
    """Return the conversation of a loop whose tool says what it was called with; each message goes by the journal."""
    messages: list[Message] = [{"role": "system", "content": "Look."}, {"role": "user", "content": "What is there?"}]
    while True:
        completion = ask(endpoint, messages, **settings)
        message: Any = decode_completion(encode_completion(completion)).message
        messages.append(changed(message))
        if "tool_calls" not in message:
            return messages
        for call in messages[-1]["tool_calls"]:
            result = f"saw {call['function']['arguments']}"
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


def test_a_tool_loop_sends_back_all_that_the_model_wrote_and_ends_in_the_form_that_training_reads(
    endpoint: Endpoint,
) -> None:
    messages = loop(endpoint)
    assert [message["role"] for message in messages[2:]] == [
        *("assistant", "tool", "tool", "assistant", "tool", "assistant")
    ]
    assert messages[2]["content"] is None
    assert [call["function"] for call in messages[2]["tool_calls"]] == [
        {"name": "look", "arguments": '{"at": "0"}'},
        {"name": "look", "arguments": '{"at": "1"}'},
    ]
    shown = {key: value for key, value in messages[-1].items() if key != "sent_back"}
    assert shown == {
        "role": "assistant",
        "content": 'saw {"at": "0"} and saw {"at": "1"} and saw {"at": "0"}',
        "reasoning_content": "weighed it",
    }
    assert "gAAAA" not in json.dumps([{**message, "sent_back": None} for message in messages])


def test_calls_that_were_given_other_ids_are_sent_back_as_the_model_wrote_them(endpoint: Endpoint) -> None:
    def renamed(message: Message) -> Message:
        calls = [{**call, "id": f"own{index}"} for index, call in enumerate(message.get("tool_calls", ()))]
        return {**message, "tool_calls": calls} if calls else message

    assert "saw" in loop(endpoint, renamed)[-1]["content"]


def test_a_loop_whose_reasoning_was_lost_goes_on_without_it(endpoint: Endpoint) -> None:
    def without_secret(message: Message) -> Message:
        output = [dict(item) for item in message["sent_back"]["output"]]
        for item in output:
            item.pop("encrypted_content", None)
        return {**message, "sent_back": {"output": output}}

    assert "saw" in loop(endpoint, without_secret)[-1]["content"]


def test_a_conversation_that_another_api_began_goes_on(endpoint: Endpoint) -> None:
    def of_chat(message: Message) -> Message:
        return {key: value for key, value in message.items() if key != "sent_back"}

    assert "saw" in loop(endpoint, of_chat)[-1]["content"]


def test_usage_and_facts_are_those_of_the_response(endpoint: Endpoint) -> None:
    turn = ask(endpoint, [{"role": "user", "content": "hi"}]).turn
    assert (turn.usage["prompt_tokens"], turn.usage["completion_tokens"]) == (90, 30)
    assert turn.model == "gpt-5-pro-2026-10-06"
    assert turn.finish_reason == "tool_calls"
    assert turn.request_id == "req_0"


def test_a_request_asks_for_effort_schema_and_a_closing_answer_in_the_words_of_this_api(
    endpoint: Endpoint, model: FakeResponses
) -> None:
    model.answer = lambda items: "{}"
    schema = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    settings: dict[str, Any] = {"reasoning_effort": "high", "response_schema": schema, "tool_choice": "none"}
    extra = {"reasoning": {"summary": "auto"}, "text": {"verbosity": "low"}, "service_tier": "flex"}
    with SimulatedProvider(model) as provider:
        there = Endpoint(provider.url, "gpt-5-pro", "m", "key-of-some-length", api="responses")
        ask(there, [{"role": "user", "content": "hi"}], extra_body=extra, **settings)
        body = provider.requests[0]
    assert body["reasoning"] == {"effort": "high", "summary": "auto"}
    assert body["text"]["verbosity"] == "low"
    assert body["text"]["format"] == {"type": "json_schema", "name": "answer", "strict": True, "schema": schema}
    assert (body["tool_choice"], body["service_tier"]) == ("none", "flex")
    assert "seed" not in body


@pytest.mark.parametrize("key", ["stop", "seed", "response_format", "max_completion_tokens", "logit_bias"])
def test_a_key_of_chat_completions_is_refused_by_name(endpoint: Endpoint, key: str) -> None:
    with pytest.raises(RequestFailed, match=key) as refused:
        ask(endpoint, [{"role": "user", "content": "hi"}], extra_body={key: 1})
    assert refused.value.failure.kind is FailureKind.PERMANENT


def test_an_image_is_refused_with_a_sentence(endpoint: Endpoint) -> None:
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "https://x/y.png"}}]
    with pytest.raises(RequestFailed, match="image_url") as refused:
        ask(endpoint, [{"role": "user", "content": parts}])
    assert refused.value.failure.kind is FailureKind.PERMANENT


@pytest.mark.parametrize(
    ("body", "finish_reason", "stop"),
    [
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, None, StopReason.LENGTH),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, None, StopReason.CONTENT_FILTER),
        ({"status": "incomplete", "incomplete_details": {"reason": "steered"}}, None, StopReason.UNFINISHED),
        ({}, "stop", StopReason.ANSWERED),
    ],
)
def test_why_a_response_ended(body: Message, finish_reason: str | None, stop: StopReason) -> None:
    turn = answered({"output": [text_item("so far")], **body}).turn
    assert turn.finish_reason == (finish_reason or body["incomplete_details"]["reason"])
    assert stop_of(turn.finish_reason) is stop


def test_a_whole_response_without_a_word_that_used_all_its_tokens_was_cut() -> None:
    body = {"output": [{"type": "reasoning", "id": "r", "summary": []}]}
    usage = {"input_tokens": 5, "output_tokens": 500, "output_tokens_details": {"reasoning_tokens": 500}}
    assert answered({**body, "usage": usage}).turn.finish_reason == "length"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("server_error", FailureKind.TRANSIENT),
        ("rate_limit_exceeded", FailureKind.RATE),
        ("invalid_prompt", FailureKind.CONTENT),
        ("bio_policy", FailureKind.CONTENT),
        ("data_residency_mismatch", FailureKind.PERMANENT),
        (None, FailureKind.TRANSIENT),
    ],
)
def test_a_failure_within_http_200_is_told_apart(code: str | None, kind: FailureKind) -> None:
    error = {"code": code, "message": "it failed"} if code else None
    with pytest.raises(RequestFailed) as failed:
        answered({"status": "failed", "error": error, "output": []})
    assert failed.value.failure.kind is kind


@pytest.mark.parametrize(
    ("model", "is_asked"),
    [("gpt-5-pro", True), ("o3", True), ("my-deployment", True), ("gpt-4.1", False), ("gpt-5-chat-latest", False)],
)
def test_only_models_that_reason_are_asked_for_their_reasoning(model: str, is_asked: bool) -> None:
    endpoint = Endpoint("https://api.openai.com/v1", model, "m")
    body = Responses(endpoint).body(ChatRequest([{"role": "user", "content": "hi"}], [], Sampling(**AS_IT_IS)))
    assert ("include" in body) is is_asked


def test_a_response_that_was_cut_amid_its_reasoning_is_a_cut_completion() -> None:
    reasoning = {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"}
    cut = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    completion = answered({"output": [reasoning], **cut, "usage": {"input_tokens": 5, "output_tokens": 500}})
    assert (completion.message["content"], completion.turn.finish_reason) == ("", "max_output_tokens")


def test_a_refusal_is_no_content() -> None:
    part = {"type": "refusal", "refusal": "I will not."}
    message = answered({"output": [text_item("", content=[part])]}).message
    assert (message["content"], message["refusal"]) == ("", "I will not.")


def test_a_comment_before_the_answer_is_sent_back_but_is_no_part_of_it() -> None:
    output = [text_item("Let me think.", phase="commentary"), text_item("42", phase="final_answer")]
    message = answered({"output": output}).message
    assert message["content"] == "42"
    assert message["sent_back"] == {"output": output}


def test_log_probabilities_are_read_where_they_stand_in_the_text() -> None:
    part = text_item("4")["content"][0]
    token = {"token": "4", "bytes": [52], "logprob": -0.5, "top_logprobs": [{"token": "4", "logprob": -0.5}]}
    item = text_item("4", content=[{**part, "logprobs": [token]}])
    assert answered({"output": [item]}, record_tokens=True).turn.sampling_logprobs == [-0.5]


@pytest.mark.parametrize(
    ("url", "model", "tools", "effort", "name"),
    [
        ("https://api.openai.com/v1", "gpt-5-pro", [], None, "responses"),
        ("https://api.openai.com/v1", "gpt-5.5-pro-2026-03-01", [], None, "responses"),
        ("https://api.openai.com/v1", "gpt-5.1-codex-max", [], None, "responses"),
        ("https://api.openai.com/v1", "o3-deep-research", [], None, "responses"),
        ("https://api.openai.com/v1", "gpt-5.2", TOOLS, "high", "chat"),
        ("https://api.openai.com/v1", "gpt-5.4-mini", TOOLS, None, "responses"),
        ("https://api.openai.com/v1", "gpt-6-sol", TOOLS, "low", "responses"),
        ("https://api.openai.com/v1", "gpt-5.4", TOOLS, "none", "chat"),
        ("https://api.openai.com/v1", "gpt-5.4", [], "high", "chat"),
        ("https://api.openai.com/v1", "gpt-4.1", TOOLS, None, "chat"),
        ("https://me.openai.azure.com/openai/v1", "gpt-5.2-codex", [], None, "responses"),
        ("https://openrouter.ai/api/v1", "openai/gpt-5-pro", [], None, "chat"),
        ("http://localhost:8000/v1", "gpt-5-pro", [], None, "chat"),
        ("https://api.anthropic.com/v1", "claude-opus-5", TOOLS, None, "messages"),
    ],
)
def test_the_api_follows_from_endpoint_model_and_request(
    url: str, model: str, tools: list[Any], effort: str | None, name: str
) -> None:
    choice = ApiChoice(Endpoint(url, model, model))
    assert choice.of(ChatRequest([], tools, Sampling(**AS_IT_IS, reasoning_effort=effort))).name == name


def test_an_endpoint_that_names_the_responses_api_is_asked_through_it_from_then_on(model: FakeResponses) -> None:
    with SimulatedProvider(model) as provider:
        endpoint = Endpoint(provider.url, "gpt-5-pro", "m", "key-of-some-length")

        async def main() -> None:
            async with aclosing(ModelClient(endpoint, HttpClient(endpoint, timeout_s=10))) as client:
                for _ in range(2):
                    sampling = Sampling(**AS_IT_IS | {"temperature": None})
                    await client.complete(ChatRequest([{"role": "user", "content": "hi"}], TOOLS, sampling))

        asyncio.run(main())
        assert ["input" in body for body in provider.requests] == [False, True, True]


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("model", ["gpt-5.6-sol", "gpt-6-sol"])
def test_a_long_prompt_that_is_sent_once_is_not_written_to_a_cache_that_charges_for_it(api: Any, model: str) -> None:
    def body_of(messages: list[Any], **changes: Any) -> Message:
        there = Endpoint("https://api.openai.com/v1", changes.pop("model", model), "m", api=api)
        settings = {**AS_IT_IS, "is_sent_once": True, **changes}
        asked = ChatRequest(messages, [], Sampling(**settings))
        return ApiChoice(there).of(asked).body(asked)

    long, short = "word " * 1500, "Be kind."
    asked = {"role": "user", "content": long}
    explicit = {"mode": "explicit"}
    body = body_of([{"role": "system", "content": short}, asked])
    assert body["prompt_cache_options"] == explicit
    assert "prompt_cache_breakpoint" not in json.dumps(body)
    # All rollouts share the system prompt.
    first = body_of([{"role": "system", "content": long}, asked])["messages" if api == "chat" else "input"][0]
    kind = "text" if api == "chat" else "input_text"
    assert first["content"] == [{"type": kind, "text": long, "prompt_cache_breakpoint": explicit}]
    for changes in ({"is_sent_once": False}, {"model": "gpt-5.5"}):
        assert "cache" not in json.dumps(body_of([asked], **changes))
    assert "cache" not in json.dumps(body_of([{"role": "user", "content": short}]))


def test_a_service_tier_is_asked_for_where_one_is_set() -> None:
    endpoint = Endpoint("https://api.openai.com/v1", "gpt-5-pro", "m", service_tier="flex")
    assert (
        Responses(endpoint).body(ChatRequest([{"role": "user", "content": "hi"}], [], Sampling(None, None, 50, None)))[
            "service_tier"
        ]
        == "flex"
    )
