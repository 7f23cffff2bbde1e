"""Guaranteed forms of answers over HTTP, through OpenAI's client."""

import importlib.util
import json
from typing import Any, Literal

import httpx
import pytest
from openai import BadRequestError, OpenAI
from pydantic import BaseModel

from stillhouse.embedded.shop import CALCULATOR_SCHEMA

has_library = importlib.util.find_spec("llguidance") is not None
needs_library = pytest.mark.skipif(not has_library, reason="the extra `serve` is not installed")

USER: Any = {"role": "user", "content": "Say something."}
NOTE: Any = {"type": "function", "function": {"name": "note", "parameters": {"type": "object", "properties": {}}}}


class Box(BaseModel):
    size: Literal["small", "large"]
    full: bool


@needs_library
def test_an_answer_is_parsed_into_a_class(openai: OpenAI) -> None:
    for seed in range(4):
        answer = openai.chat.completions.parse(
            model="student", messages=[USER], response_format=Box, seed=seed, temperature=2.0
        )
        assert isinstance(answer.choices[0].message.parsed, Box)


@needs_library
def test_json_of_any_kind_is_an_object(openai: OpenAI) -> None:
    answer = openai.chat.completions.create(
        model="student", messages=[USER], response_format={"type": "json_object"}, temperature=0, max_tokens=900
    )
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)


@needs_library
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "note"}}])
def test_a_tool_is_called_where_one_must_be_streamed_or_not(openai: OpenAI, choice: Any) -> None:
    fields: dict[str, Any] = {"model": "student", "messages": [USER], "tools": [NOTE], "tool_choice": choice, "seed": 3}
    fields |= {"parallel_tool_calls": False, "temperature": 0.0}
    whole = openai.chat.completions.create(**fields).choices[0]
    assert whole.finish_reason == "tool_calls"
    assert [call.function.name for call in whole.message.tool_calls] == ["note"]
    *_, last = chunks = [chunk.choices[0] for chunk in openai.chat.completions.create(**fields, stream=True)]
    assert last.finish_reason == "tool_calls"
    [call] = [call for chunk in chunks for call in chunk.delta.tool_calls or []]
    assert call.function.arguments == whole.message.tool_calls[0].function.arguments


@needs_library
def test_a_schema_that_cannot_be_enforced_is_a_400(openai: OpenAI) -> None:
    described = {"name": "a", "strict": True, "schema": {"type": "object", "properties": {"a": {"type": "nothing"}}}}
    with pytest.raises(BadRequestError, match="nothing") as caught:
        openai.chat.completions.create(
            model="student",
            messages=[USER],
            response_format={"type": "json_schema", "json_schema": described},  # type: ignore[misc,list-item]
        )
    assert caught.value.param == "response_format"


@pytest.mark.skipif(has_library, reason="the extra `serve` is installed")
@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [CALCULATOR_SCHEMA], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [CALCULATOR_SCHEMA], "parallel_tool_calls": False}, "tools"),
    ],
)
def test_without_the_library_a_guarantee_is_refused_with_what_to_install(
    http: httpx.Client, fields: dict[str, Any], cause: str
) -> None:
    answer = http.post("/chat/completions", json={"model": "student", "messages": [USER], **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, cause)
    assert "pip install 'stillhouse[serve]'" in answer.json()["error"]["message"]
