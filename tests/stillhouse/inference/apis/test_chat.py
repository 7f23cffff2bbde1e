from typing import Any

import pytest

from stillhouse.inference.apis.chat import ChatCompletions
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.sampling import ChatRequest, Sampling
from stillhouse.tools.calculator import calculator

PLAIN: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9, "max_tokens": 32, "seed": None}
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}


def body(
    url: str = "http://127.0.0.1/v1", *, tools: bool = False, is_local: bool = False, **sampling: Any
) -> dict[str, Any]:
    endpoint = Endpoint(url, "m", "m", capacity=1 if is_local else None)
    offered = [calculator.schema] if tools else []
    return ChatCompletions(endpoint).body(ChatRequest([], offered, Sampling(**{**PLAIN, **sampling})))


def test_what_is_not_set_is_not_sent() -> None:
    sent = body("https://api.openai.com/v1", temperature=None, top_p=None)
    assert sent == {"model": "m", "messages": [], "max_completion_tokens": 32}


def test_nothing_is_sent_that_was_not_asked_for() -> None:
    assert body() == {"model": "m", "messages": [], "temperature": 0.5, "top_p": 0.9, "max_tokens": 32}


def test_a_service_tier_is_asked_for_where_one_is_set() -> None:
    endpoint = Endpoint("http://127.0.0.1/v1", "m", "m", service_tier="flex")
    assert ChatCompletions(endpoint).body(ChatRequest([], [], Sampling(**PLAIN)))["service_tier"] == "flex"


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
        (
            "https://mine.openai.azure.com/openai/v1",
            {"max_completion_tokens": 32, "reasoning_effort": "low", "logprobs": True},
        ),
        ("https://api.mistral.ai/v1", {"max_tokens": 32, "reasoning_effort": "low", "logprobs": True}),
    ],
)
def test_each_provider_is_sent_the_keys_that_it_takes(url: str, keys: dict[str, Any]) -> None:
    sent = body(url, reasoning_effort="low", record_tokens=True)
    assert sent == {"model": "m", "messages": [], "temperature": 0.5, "top_p": 0.9, **keys}


@pytest.mark.parametrize(("url", "as_ids"), [("https://api.openai.com/v1", False), ("http://127.0.0.1/v1", True)])
def test_the_most_probable_tokens_are_asked_for_in_the_providers_form(url: str, as_ids: bool) -> None:
    sent = body(url, record_top_k=7)
    assert (sent["logprobs"], sent["top_logprobs"]) == (True, 7)
    assert "raw_logprobs" not in sent
    assert sent.get("return_tokens_as_token_ids", False) is as_ids


def test_tools_are_shown_but_refused_for_a_closing_answer() -> None:
    assert body(tools=True, tool_choice="none")["tool_choice"] == "none"
    assert body(tools=True)["tools"] == [calculator.schema]
    assert "tool_choice" not in body(tools=True)
    assert "tool_choice" not in body(tool_choice="none")


def test_a_schema_becomes_a_strict_response_format_but_for_a_server_of_ours() -> None:
    assert "response_format" not in body(response_schema=SCHEMA, is_local=True)
    assert body(response_schema=SCHEMA)["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA},
    }


def test_the_users_own_keys_have_the_last_word() -> None:
    assert body(extra_body={"temperature": 0.0, "provider": {"only": ["x"]}})["temperature"] == 0.0
    assert body(extra_body={"provider": {"only": ["x"]}})["provider"] == {"only": ["x"]}
