"""Requests that are answered 400 by name, and fields that mean nothing for an answer."""

from typing import Any

import httpx
import pytest

from examples.embedded.shop import CALCULATOR_SCHEMA

CHAT: dict[str, Any] = {"model": "student", "messages": [{"role": "user", "content": "1 + 1"}], "max_tokens": 2}
TEXT: dict[str, Any] = {"model": "student", "prompt": "x", "max_tokens": 1}
NAMED: dict[str, Any] = {"type": "function", "function": {"name": "calculator"}}


def refusal(http: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = http.post(path, json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return error


CHATS: list[tuple[dict[str, Any], str]] = [
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
    ({"stop": [""]}, "stop"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
    ({"presence_penalty": 0.5}, "presence_penalty"),
    ({"logit_bias": {"5": 100}}, "logit_bias"),
    ({"best_of": 3}, "best_of"),
    ({"store": True}, "store"),
    ({"temperature": -1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"n": 0}, "n"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
    ({"tools": [{"type": "web_search"}]}, "tools"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"made_up": 3}, "made_up"),
]
TEXTS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": [619]}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"prompt_logprobs": 50}, "prompt_logprobs"),
    ({"suffix": "y"}, "suffix"),
    ({"messages": []}, "messages"),
]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        *(("/chat/completions", {**CHAT, **change}, field) for change, field in CHATS),
        *(("/completions", {**TEXT, **change}, field) for change, field in TEXTS),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    http: httpx.Client, path: str, body: dict[str, Any], field: str
) -> None:
    error = refusal(http, path, body)
    assert error["param"].startswith(field)
    assert field in error["message"]
    assert field != "made_up" or error["code"] == "unknown_parameter"


@pytest.mark.parametrize(
    ("path", "change", "field"),
    [
        ("/chat/completions", {"stream": True}, "stream"),
        ("/completions", {"stream": True}, "stream"),
        ("/chat/completions", {"response_format": {"type": "json_object"}}, "response_format"),
        ("/chat/completions", {"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
        ("/chat/completions", {"tools": [CALCULATOR_SCHEMA], "tool_choice": "required"}, "tool_choice"),
        ("/chat/completions", {"tools": [CALCULATOR_SCHEMA], "tool_choice": NAMED}, "tool_choice"),
        ("/chat/completions", {"parallel_tool_calls": False}, "parallel_tool_calls"),
    ],
)
def test_what_other_servers_do_is_refused_with_their_names(
    http: httpx.Client, path: str, change: dict[str, Any], field: str
) -> None:
    error = refusal(http, path, {**(CHAT if path.startswith("/chat") else TEXT), **change})
    assert error["param"].startswith(field)
    assert "vLLM or `transformers serve`" in error["message"]


def test_fields_that_change_nothing_are_accepted(http: httpx.Client) -> None:
    nothing = {
        "stop": None, "stream": False, "user": "x", "metadata": {"run": "7"}, "safety_identifier": "y", "store": False,
        "n": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "top_k": -1, "service_tier": "auto",
        "response_format": {"type": "text"}, "tool_choice": "none", "parallel_tool_calls": True, "made_up": None,
    }  # fmt: skip
    answer = http.post("/chat/completions", json={**CHAT, **nothing})
    assert (answer.status_code, answer.json()["object"]) == (200, "chat.completion")
