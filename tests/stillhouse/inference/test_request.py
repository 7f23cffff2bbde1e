from typing import Any

import pytest

from stillhouse.inference.completion import Sampling, request_body
from stillhouse.inference.endpoint import Endpoint
from stillhouse.tools.calculator import calculator

PLAIN: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9, "max_tokens": 32, "seed": None}
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}


def body(url: str = "http://127.0.0.1/v1", *, tools: bool = False, **sampling: Any) -> dict[str, Any]:
    endpoint = Endpoint(url, "m", "m")
    return request_body(endpoint, [], [calculator.schema] if tools else [], Sampling(**{**PLAIN, **sampling}))


def test_nothing_is_sent_that_was_not_asked_for() -> None:
    assert body() == {"model": "m", "messages": [], "temperature": 0.5, "top_p": 0.9, "max_tokens": 32}


@pytest.mark.parametrize(
    ("url", "key"),
    [("https://api.openai.com/v1", "max_completion_tokens"), ("https://openrouter.ai/api/v1", "max_tokens")],
)
def test_the_bound_of_a_completion_is_spelt_as_the_provider_takes_it(url: str, key: str) -> None:
    assert body(url)[key] == 32


def test_tools_are_shown_but_refused_for_a_closing_answer() -> None:
    assert body(tools=True, tool_choice="none")["tool_choice"] == "none"
    assert body(tools=True)["tools"] == [calculator.schema]
    assert "tool_choice" not in body(tools=True)
    assert "tool_choice" not in body(tool_choice="none")


def test_effort_is_spelt_as_the_provider_takes_it() -> None:
    assert body(reasoning_effort="low")["reasoning_effort"] == "low"
    assert body("https://openrouter.ai/api/v1", reasoning_effort="low")["reasoning"] == {"effort": "low"}


def test_a_schema_becomes_a_strict_response_format() -> None:
    assert body(response_schema=SCHEMA)["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA},
    }


def test_openai_is_not_sent_keys_it_refuses() -> None:
    assert body(record_tokens=True)["return_token_ids"] is True
    asked = body("https://api.openai.com/v1", record_tokens=True)
    assert asked["logprobs"] is True
    assert "return_token_ids" not in asked


def test_openrouter_is_asked_for_the_cost() -> None:
    assert body("https://openrouter.ai/api/v1")["usage"] == {"include": True}


def test_the_users_own_keys_have_the_last_word() -> None:
    assert body(extra_body={"temperature": 0.0, "provider": {"only": ["x"]}})["temperature"] == 0.0
    assert body(extra_body={"provider": {"only": ["x"]}})["provider"] == {"only": ["x"]}
