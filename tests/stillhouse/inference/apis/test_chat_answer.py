import dataclasses
import json
from typing import Any

import orjson
import pytest

from stillhouse.inference.apis.chat import ChatCompletions
from stillhouse.inference.completion import Completion, decode_completion, encode_completion
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import FailureKind, RequestFailed
from stillhouse.inference.rate_limit.headers import RateLimits
from stillhouse.inference.sampling import ChatRequest, Sampling
from stillhouse.inference.transport import HttpAnswer
from tests.provider import completion


def read(
    body: Any, *, record_tokens: bool = False, headers: dict[str, str] | None = None, max_tokens: int = 1000
) -> Completion:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = ChatRequest([], [], Sampling(None, None, max_tokens, None, record_tokens=record_tokens))
    api = ChatCompletions(Endpoint("http://127.0.0.1/v1", "asked", "asked"))
    return api.completion(HttpAnswer(content, headers or {}, 1.25), request)


def test_a_message_is_kept_as_it_was_written_less_its_nulls() -> None:
    extra = {
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
    untold = read(with_tokens(token_ids, written)).turn
    assert (untold.completion_ids, untold.sampling_logprobs) == (None, None)
    assert ("2 token ids but 1 log-probabilities" in caplog.text) is (written == logprobs(-0.5))


@pytest.mark.parametrize("extra", [{"refusal": "I cannot."}, {"reasoning_details": [{"data": "opaque"}]}])
def test_a_refusal_or_reasoning_alone_is_an_answer_even_without_usage(extra: dict[str, Any]) -> None:
    message = read(completion(None, completion_tokens=None, message=extra)).message
    assert message == {"role": "assistant", "content": "", **extra}


def test_facts_that_are_not_reported_or_of_the_wrong_type_are_unknown_not_zero() -> None:
    body = completion("4", completion_tokens=None)
    body |= {"model": 7, "provider": {"name": "x"}, "id": None}
    body["choices"][0]["finish_reason"] = None
    turn = read(body).turn
    assert (turn.model, turn.provider, turn.request_id, turn.finish_reason) == ("asked", None, None, "unknown")
    assert (turn.usage, turn.cost_usd, turn.prompt_ids) == ({}, None, None)


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
        *((completion("half", finish_reason=word), "transient", 200) for word in ("abort", "network_error")),
        ({"choices": [{"finish_reason": "UNEXPECTED_TOOL_CALL", "message": None}]}, "malformed", 200),
        (completion(None, finish_reason="MALFORMED_FUNCTION_CALL", completion_tokens=0), "malformed", 200),
        (completion(message={"content": 4}), "permanent", 200),
        (completion(message={"content": {"answer": "B"}}), "permanent", 200),
        ({"base_resp": {"status_code": 1002, "status_msg": "rate limit"}, "choices": None}, "rate", 200),
    ],
)
def test_a_200_without_a_completion_is_a_failure(body: Any, kind: str, status: int) -> None:
    with pytest.raises(RequestFailed) as caught:
        read(body)
    assert caught.value.failure.kind is FailureKind(kind)
    assert caught.value.failure.status == status


@pytest.mark.parametrize(
    "body",
    [
        completion(message={"content": {"type": "text", "text": "4"}}),
        completion(message={"role": "model", "content": "4"}),
        {"choices": [{"text": "4", "finish_reason": "stop"}]},
        {**completion("4"), "error": {"code": 0, "message": ""}},
    ],
)
def test_a_text_in_another_form_or_beside_an_error_that_says_nothing_is_read(body: dict[str, Any]) -> None:
    assert read(body).message == {"role": "assistant", "content": "4"}


@pytest.mark.parametrize(
    ("body", "finish_reason"),
    [
        (completion("4", finish_reason="Brand"), "Brand"),
        (completion("", finish_reason="OTHER", completion_tokens=0), "OTHER"),
        ({"choices": [{"finish_reason": "SAFETY", "message": None}]}, "SAFETY"),
        ({"choices": [{"finish_reason": {"type": "length"}, "message": {"content": "4"}}]}, "{'type': 'length'}"),
        ({"choices": [{"message": {"content": "4"}}]}, "unknown"),
        (
            {"choices": [{"finish_reason": "", "message": {"content": "4"}}], "usage": {"completion_tokens": 8}},
            "length",
        ),
        ({"choices": [{"message": {"tool_calls": [{"id": "c"}]}}]}, "tool_calls"),
    ],
)
def test_the_finish_reason_is_the_endpoints_word_or_stands_for_none(body: Any, finish_reason: str) -> None:
    answer = read(body, max_tokens=8)
    assert answer.turn.finish_reason == finish_reason


def test_an_empty_message_that_may_be_all_there_was_is_an_answer() -> None:
    assert read(completion("", completion_tokens=1)).message == {"role": "assistant", "content": ""}
    assert read(completion("", completion_tokens=9, finish_reason="length")).turn.finish_reason == "length"
    thought = completion("", completion_tokens=90)
    thought["usage"]["completion_tokens_details"] = {"reasoning_tokens": 89}
    assert read(thought).message["content"] == ""
    assert read(completion("<think>\n\n</think>\n\n", completion_tokens=5)).message["content"] == ""


def test_a_completion_cut_inside_a_character_and_numbers_above_64_bits_are_kept() -> None:
    cut = read(json.dumps(completion("MARK", finish_reason="length")).replace("MARK", "smile \\ud83d").encode())
    assert cut.message["content"] == "smile ?"
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"id": 98765432109876543210}}}
    large = read(completion(None, message={"tool_calls": [call]}))
    assert "98765432109876543210" in str(large.message["tool_calls"])
    for answer in (cut, large):
        assert decode_completion(encode_completion(answer)) == answer


def test_the_journal_gives_back_an_equal_completion() -> None:
    answer = read(with_tokens([4, 5], logprobs(-0.1234567890123456789, -1e-30)), record_tokens=True)
    again = decode_completion(encode_completion(answer))
    assert again == answer
    assert orjson.dumps(again) == orjson.dumps(answer)
