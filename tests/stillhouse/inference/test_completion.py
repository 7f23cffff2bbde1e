import dataclasses
import json
from typing import Any

import orjson
import pytest

from stillhouse.inference.completion import (
    Completion,
    Sampling,
    decode_completion,
    encode_completion,
    explain_refusal,
    read_completion,
    request_body,
)
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.inference.rate_limit.headers import RateLimits
from stillhouse.testing import completion
from stillhouse.tools.calculator import calculator


def read(body: Any, *, record_tokens: bool = False, headers: dict[str, str] | None = None) -> Completion:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_completion(content, headers or {}, latency_s=1.25, model="asked", record_tokens=record_tokens)


def test_a_message_is_kept_as_it_was_written_less_its_nulls() -> None:
    extra = {
        "reasoning": "hm",
        "reasoning_content": "hm",
        "reasoning_details": [{"type": "reasoning.encrypted", "data": "xyz", "id": None}],
        "annotations": [],
    }
    message = read(completion("4", message={**extra, "audio": None})).message
    assert message == {"role": "assistant", "content": "4", **extra}


def test_arguments_are_kept_to_the_letter_and_an_empty_list_of_calls_is_none() -> None:
    arguments = '{"expression":  "1+1" , }'
    assert read(completion(tool_calls=[("calculator", arguments)])).message["tool_calls"][0]["function"] == {
        "name": "calculator",
        "arguments": arguments,
    }
    assert "tool_calls" not in read(completion("4", message={"tool_calls": []})).message


def test_the_facts_of_a_turn_are_those_the_endpoint_reported() -> None:
    body = completion("4")
    body["usage"] = {"prompt_tokens": 11, "completion_tokens": 3, "cost": 0.0025}
    body["provider"] = "Somebody"
    turn = read(body, headers={"x-request-id": "req-1"}).turn
    assert turn.usage == {"prompt_tokens": 11, "completion_tokens": 3}
    assert (turn.cost_usd, turn.provider, turn.request_id) == (0.0025, "Somebody", "req-1")
    assert (turn.finish_reason, turn.latency_s, turn.model) == ("stop", 1.25, "simulated-1")


def test_what_was_not_reported_is_unknown_not_zero() -> None:
    turn = read(completion("4", completion_tokens=None)).turn
    assert turn.usage == {}
    assert (turn.cost_usd, turn.provider, turn.prompt_ids) == (None, None, None)


def with_tokens(token_ids: list[int] | None, logprobs: Any) -> dict[str, Any]:
    body = completion("4")
    body["prompt_token_ids"] = [1, 2, 3]
    body["choices"][0] |= {"token_ids": token_ids, "logprobs": logprobs}
    return body


def logprobs(*values: float) -> dict[str, Any]:
    return {"content": [{"logprob": value} for value in values]}


@pytest.mark.parametrize(
    ("token_ids", "written", "read_logprobs"),
    [
        ([4, 5], logprobs(-0.5, -0.25), [-0.5, -0.25]),
        ([4, 5], logprobs(-0.5), None),
        (None, logprobs(-0.5, -0.25), [-0.5, -0.25]),
        (None, None, None),
        *(([4], odd, None) for odd in ("none", {"content": "none"}, {"content": [{"token": "a"}]}, {"content": [1]})),
    ],
)
def test_token_ids_and_logprobs_that_match_them_are_kept(
    token_ids: list[int] | None, written: Any, read_logprobs: list[float] | None, caplog: pytest.LogCaptureFixture
) -> None:
    turn = read(with_tokens(token_ids, written), record_tokens=True).turn
    assert (turn.prompt_ids, turn.completion_ids, turn.sampling_logprobs) == ([1, 2, 3], token_ids, read_logprobs)
    assert ("2 token ids but 1 log-probabilities" in caplog.text) is (written == logprobs(-0.5))


def test_tokens_are_kept_only_when_asked_for() -> None:
    turn = read(with_tokens([4, 5], logprobs(-0.5, -0.25))).turn
    assert (turn.completion_ids, turn.sampling_logprobs) == (None, None)


@pytest.mark.parametrize("extra", [{"refusal": "I cannot."}, {"reasoning_details": [{"data": "opaque"}]}])
def test_a_refusal_or_reasoning_alone_is_an_answer_even_without_usage(extra: dict[str, Any]) -> None:
    message = read(completion(None, completion_tokens=None, message=extra)).message
    assert message == {"role": "assistant", **extra}


def test_facts_of_the_wrong_type_are_unknown() -> None:
    body = completion("4")
    body |= {"model": 7, "provider": {"name": "x"}, "id": None}
    body["choices"][0]["finish_reason"] = None
    turn = read(body).turn
    assert (turn.model, turn.provider, turn.request_id, turn.finish_reason) == ("asked", None, None, "unknown")


def test_what_headers_answer_of_limits_is_not_journaled() -> None:
    answer = read(completion("4"))
    limited = dataclasses.replace(answer, limits=RateLimits())
    assert encode_completion(limited) == encode_completion(answer)


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b'{"choices": [{"mess', "transient", 200),
        (b"", "transient", 200),
        (b"[]", "transient", 200),
        ({"choices": None}, "transient", 200),
        ({"choices": []}, "transient", 200),
        ({"choices": [{"finish_reason": "stop", "message": None}]}, "transient", 200),
        ({"error": {"message": "Rate limited", "code": 429}}, "rate", 429),
        ({"error": {"message": "No credits", "code": 402}}, "quota", 402),
        ({"error": {"message": "Upstream", "code": 502}}, "transient", 502),
        ({"error": "something"}, "transient", 200),
        ({"choices": [{"error": {"message": "Upstream", "code": 500}, "finish_reason": "error"}]}, "transient", 500),
        (completion("half", finish_reason="error"), "transient", 200),
        (completion("", completion_tokens=0), "transient", 200),
        (completion("", completion_tokens=9), "transient", 200),
        (completion(None, completion_tokens=None), "transient", 200),
    ],
)
def test_a_200_without_a_completion_is_a_failure(body: Any, kind: str, status: int) -> None:
    with pytest.raises(RequestFailed) as caught:
        read(body)
    assert caught.value.failure.kind is FailureKind(kind)
    assert caught.value.failure.status == status


def test_an_empty_message_that_may_be_all_there_was_is_an_answer() -> None:
    assert read(completion("", completion_tokens=1)).message == {"role": "assistant", "content": ""}
    assert read(completion("", completion_tokens=9, finish_reason="length")).turn.finish_reason == "length"
    thought = completion("", completion_tokens=90)
    thought["usage"]["completion_tokens_details"] = {"reasoning_tokens": 89}
    assert read(thought).message["content"] == ""


def test_a_completion_cut_inside_a_character_is_kept() -> None:
    body = json.dumps(completion("MARK", finish_reason="length")).replace("MARK", "smile \\ud83d").encode()
    answer = read(body)
    assert answer.message["content"] == "smile ?"
    assert decode_completion(encode_completion(answer)) == answer


def test_the_journal_gives_back_an_equal_completion() -> None:
    answer = read(with_tokens([4, 5], logprobs(-0.1234567890123456789, -1e-30)), record_tokens=True)
    again = decode_completion(encode_completion(answer))
    assert again == answer
    assert orjson.dumps(again) == orjson.dumps(answer)


PLAIN: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9, "max_tokens": 32, "seed": None}
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}


def body(url: str = "http://127.0.0.1/v1", *, tools: bool = False, **sampling: Any) -> dict[str, Any]:
    endpoint = Endpoint(url, "m", "m")
    return request_body(endpoint, [], [calculator.schema] if tools else [], Sampling(**{**PLAIN, **sampling}))


def test_nothing_is_sent_that_was_not_asked_for() -> None:
    assert body() == {"model": "m", "messages": [], "temperature": 0.5, "top_p": 0.9, "max_tokens": 32}


@pytest.mark.parametrize(
    ("url", "keys"),
    [
        ("https://api.openai.com/v1", {"max_completion_tokens": 32, "reasoning_effort": "low", "logprobs": True}),
        (
            "https://openrouter.ai/api/v1",
            {
                "max_tokens": 32,
                "reasoning": {"effort": "low"},
                "logprobs": True,
                "return_token_ids": True,
                "usage": {"include": True},
            },
        ),
        (
            "http://127.0.0.1/v1",
            {"max_tokens": 32, "reasoning_effort": "low", "logprobs": True, "return_token_ids": True},
        ),
    ],
)
def test_each_provider_is_sent_the_keys_that_it_takes(url: str, keys: dict[str, Any]) -> None:
    sent = body(url, reasoning_effort="low", record_tokens=True)
    assert sent == {"model": "m", "messages": [], "temperature": 0.5, "top_p": 0.9, **keys}


@pytest.mark.parametrize(
    ("url", "keys"),
    [
        ("https://api.openai.com/v1", {}),
        ("http://127.0.0.1/v1", {"return_tokens_as_token_ids": True}),
    ],
)
def test_the_most_probable_tokens_are_asked_for_in_the_providers_form(url: str, keys: dict[str, Any]) -> None:
    sent = body(url, record_top_k=7)
    assert {"logprobs": True, "top_logprobs": 7, **keys}.items() <= sent.items()
    assert "raw_logprobs" not in sent
    assert ("return_tokens_as_token_ids" in sent) is bool(keys)


def test_a_refusal_of_log_probabilities_says_what_to_set() -> None:
    def explained(message: str, kind: FailureKind = FailureKind.PERMANENT, top_k: int | None = 30) -> str:
        return explain_refusal(Failure(kind, message), Sampling(1.0, 1.0, 8, None, record_top_k=top_k)).message

    refused = "HTTP 400: Invalid 'top_logprobs'"
    assert "refuses rollouts.record_top_k 30: lower it" in explained(refused)
    assert explained("HTTP 400: too long") == "HTTP 400: too long"
    assert explained(refused, FailureKind.TRANSIENT) == explained(refused, top_k=None) == refused


def test_tools_are_shown_but_refused_for_a_closing_answer() -> None:
    assert body(tools=True, tool_choice="none")["tool_choice"] == "none"
    assert body(tools=True)["tools"] == [calculator.schema]
    assert "tool_choice" not in body(tools=True)
    assert "tool_choice" not in body(tool_choice="none")


def test_a_schema_becomes_a_strict_response_format() -> None:
    assert body(response_schema=SCHEMA)["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA},
    }


def test_the_users_own_keys_have_the_last_word() -> None:
    assert body(extra_body={"temperature": 0.0, "provider": {"only": ["x"]}})["temperature"] == 0.0
    assert body(extra_body={"provider": {"only": ["x"]}})["provider"] == {"only": ["x"]}


def test_whole_numbers_above_64_bits_in_arguments_stay_exact() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"id": 98765432109876543210}}}
    answer = read(completion(None, message={"tool_calls": [call]}))
    assert answer.message["tool_calls"] == [call]
    assert decode_completion(encode_completion(answer)) == answer
