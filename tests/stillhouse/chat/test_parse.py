import json
from typing import Any

import pytest

from stillhouse.chat.parse import MALFORMED_CALL, parse_completion

CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "with_calls", "content"),
    [
        ("The answer is 3.", True, "The answer is 3."),
        ("", True, ""),
        ("<think>\n\n</think>\n\nyes", True, "yes"),
        (CALL, False, CALL),
    ],
    ids=["plain text", "nothing", "empty reasoning", "a call where no tools were offered"],
)
def test_text_without_calls_or_reasoning_is_content_alone(text: str, with_calls: bool, content: str) -> None:
    assert parse_completion(text, with_calls=with_calls) == {"role": "assistant", "content": content}


def test_calls_are_numbered_on_from_the_first_index_and_keep_their_order() -> None:
    text = "".join(f'<tool_call>\n{{"name": "f", "arguments": {{"x": {x}}}}}\n</tool_call>' for x in (1, 2))
    message = parse_completion(text, first_call_index=5)
    assert message["content"] is None
    assert [(call["id"], call["function"]["arguments"]) for call in message["tool_calls"]] == [
        ("call_5", '{"x": 1}'),
        ("call_6", '{"x": 2}'),
    ]


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ('{"name": "f", "arguments":  {"x":1.0,  "y" : "\\u00e9"}}', '{"x":1.0,  "y" : "\\u00e9"}'),
        (json.dumps({"note": '"arguments": {"x": 9}', "name": "f", "arguments": {"x": 1}}), '{"x": 1}'),
        ('{"name": "f", "arguments": "{\\"x\\": 1}"}', '{"x": 1}'),
    ],
    ids=["as the model spelt them", "not a string that looks like them", "written as a string"],
)
def test_arguments_are_those_of_the_call(body: str, arguments: str) -> None:
    (call,) = parse_completion(f"<tool_call>{body}</tool_call>")["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": arguments}


PROPERTIES = {"word": {"type": "string"}, "n": {"type": ["integer", "null"]}, "text": {"type": ["string", "null"]}}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "f", "parameters": {"properties": PROPERTIES}}}]


@pytest.mark.parametrize(
    ("body", "tools", "arguments"),
    [
        ("\n<function=f>\n<parameter=word>\n10\n</parameter>\n<parameter=n>\n10\n</parameter>\n</function>\n",
         TOOLS, {"word": "10", "n": 10}),
        ("f\n<arg_key>word</arg_key>\n<arg_value>a\n b</arg_value>\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n",
         TOOLS, {"word": "a\n b", "n": 1}),
        ("f<arg_key>text</arg_key><arg_value>true</arg_value>", TOOLS, {"text": "true"}),
        ("f<arg_key>text</arg_key><arg_value>null</arg_value>", TOOLS, {"text": None}),
        ("<function=f><parameter=list>[1, 2]</parameter><parameter=is_on>True</parameter></function>", None,
         {"list": [1, 2], "is_on": True}),
        ("<function=f></function>", None, {}),
    ],
    ids=["Qwen3-Coder", "GLM 4.6", "GLM 4.7", "a null", "without schemas", "without arguments"],
)  # fmt: skip
def test_calls_between_tags_are_read_with_the_types_of_their_schema(
    body: str, tools: Any, arguments: dict[str, Any]
) -> None:
    (call,) = parse_completion(f"<tool_call>{body}</tool_call>", tools=tools)["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("f", arguments)


@pytest.mark.parametrize(
    "block",
    [
        '<tool_call>\n{"name": "f", "arguments": {"x": \n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": {"x": 1}}',
        "<tool_call></tool_call>",
        '<tool_call>["f"]</tool_call>',
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        "<tool_call><function=f><parameter=x>1</function></tool_call>",
        "<tool_call>f<arg_key>x</arg_key></tool_call>",
    ],
)
def test_a_block_that_is_no_call_becomes_a_malformed_call_holding_the_block(block: str) -> None:
    message = parse_completion(f"Let me see.\n{block}")
    assert message["content"] == "Let me see."
    assert [call["function"] for call in message["tool_calls"]] == [{"name": MALFORMED_CALL, "arguments": block}]


def test_a_good_call_beside_a_malformed_one_is_still_a_call() -> None:
    message = parse_completion(f"{CALL}\n<tool_call>oops</tool_call>")
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["f", MALFORMED_CALL]


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<think>\nhm\n</think>\n\nyes", "hm", "yes"),
        ("hm\n</think>\n\nyes", "hm", "yes"),
        ("<think>\ncut off", "cut off", None),
    ],
)
def test_reasoning_is_kept_apart_from_content(text: str, reasoning: str, content: str | None) -> None:
    message = parse_completion(text)
    assert (message["reasoning_content"], message["content"]) == (reasoning, content)
