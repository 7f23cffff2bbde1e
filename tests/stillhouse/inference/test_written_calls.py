from typing import Any

import pytest

from stillhouse.inference.written_calls import with_calls
from stillhouse.types import ToolSchema

ARGUMENTS = '{"a": 2, "b":  3}'


def schema(name: str) -> ToolSchema:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}


TOOLS = [schema("add"), schema("now"), schema("get_time"), schema("get_it"), schema("GET_IT")]


def names(message: Any, tools: list[ToolSchema] = TOOLS) -> list[str]:
    return [call["function"]["name"] for call in with_calls(message, tools).get("tool_calls", ())]


def call(name: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": ARGUMENTS}}


@pytest.mark.parametrize(
    ("written", "read"),
    [
        *(
            (name, "add")
            for name in ("add", " add\n", "Add", "ADD", "functions.add", "function:add", "tools.add", "functions.add:0")
        ),
        *((name, "add") for name in ("default_api.add", "add<|channel|>commentary", "add<|constrain|>json", "add:12")),
        ("get-time", "get_time"),
        ("get_it", "get_it"),
        ("Get_It", "Get_It"),
        ("addition", "addition"),
        ("other.add", "other.add"),
        ("", ""),
    ],
)
def test_a_decorated_name_is_the_one_offered_tool_that_it_can_mean(written: str, read: str) -> None:
    assert names({"role": "assistant", "tool_calls": [call(written)]}) == [read]


def test_without_offered_tools_names_and_texts_stay() -> None:
    assert names({"role": "assistant", "tool_calls": [call("functions.add")]}, []) == ["functions.add"]
    text = {"role": "assistant", "content": '<tool_call>{"name": "add", "arguments": {}}</tool_call>'}
    assert with_calls(text, []) == text  # type: ignore[arg-type]


def test_the_first_form_of_a_call_is_read() -> None:
    message: Any = {"role": "assistant", "function_call": {"name": "functions.add", "arguments": ARGUMENTS}}
    assert with_calls(message, TOOLS) == {"role": "assistant", "tool_calls": [{**call("add"), "id": "call_0"}]}
    assert with_calls({"role": "assistant", "content": "hm", "function_call": {}}, TOOLS) == {  # type: ignore[typeddict-unknown-key]
        "role": "assistant",
        "content": "hm",
    }


def test_calls_that_the_server_left_in_the_text_are_read_if_all_are_of_offered_tools() -> None:
    block = '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>'
    read: Any = with_calls({"role": "assistant", "content": f"I add.{block}"}, TOOLS)
    assert read["content"] == "I add."
    assert read["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 2}'}
    for text in (f"{block}<tool_call>not a call</tool_call>", block.replace("add", "rm"), "<tool_call> is a tag"):
        assert with_calls({"role": "assistant", "content": text}, TOOLS) == {"role": "assistant", "content": text}


@pytest.mark.parametrize("odd", [["x"], [{"function": None}], [call(None)], [call(7)]])
def test_calls_without_a_name_are_left_to_whoever_runs_them(odd: Any) -> None:
    assert with_calls({"role": "assistant", "tool_calls": odd}, TOOLS)["tool_calls"] == odd
