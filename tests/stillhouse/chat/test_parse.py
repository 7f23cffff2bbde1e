import json

import pytest

from stillhouse.chat.parse import MALFORMED_CALL, parse_completion


def test_plain_text_is_content_alone() -> None:
    assert parse_completion("The answer is 3.") == {"role": "assistant", "content": "The answer is 3."}


def test_an_empty_completion_is_empty_content_not_none() -> None:
    assert parse_completion("") == {"role": "assistant", "content": ""}


def test_calls_are_numbered_on_from_the_first_index_and_keep_their_order() -> None:
    text = "".join(f'<tool_call>\n{{"name": "f", "arguments": {{"x": {x}}}}}\n</tool_call>' for x in (1, 2))
    message = parse_completion(text, first_call_index=5)
    assert message["content"] is None
    assert [(call["id"], call["function"]["arguments"]) for call in message["tool_calls"]] == [
        ("call_5", '{"x": 1}'),
        ("call_6", '{"x": 2}'),
    ]


def test_arguments_keep_the_spelling_of_the_model() -> None:
    message = parse_completion('<tool_call>{"name": "f", "arguments":  {"x":1.0,  "y" : "\\u00e9"}}</tool_call>')
    assert message["tool_calls"][0]["function"]["arguments"] == '{"x":1.0,  "y" : "\\u00e9"}'


def test_a_string_that_looks_like_arguments_is_not_taken_for_them() -> None:
    body = json.dumps({"note": '"arguments": {"x": 9}', "name": "f", "arguments": {"x": 1}})
    message = parse_completion(f"<tool_call>{body}</tool_call>")
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"x": 1}


def test_arguments_written_as_a_string_are_that_string() -> None:
    message = parse_completion('<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>')
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"x": 1}'}


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
    ],
)
def test_a_block_that_is_no_call_becomes_a_malformed_call_holding_the_block(block: str) -> None:
    message = parse_completion(f"Let me see.\n{block}")
    assert message["content"] == "Let me see."
    assert [call["function"] for call in message["tool_calls"]] == [{"name": MALFORMED_CALL, "arguments": block}]


def test_a_good_call_beside_a_malformed_one_is_still_a_call() -> None:
    message = parse_completion('<tool_call>{"name": "f", "arguments": {}}</tool_call>\n<tool_call>oops</tool_call>')
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


def test_empty_reasoning_leaves_no_key() -> None:
    assert parse_completion("<think>\n\n</think>\n\nyes") == {"role": "assistant", "content": "yes"}


def test_blocks_stay_content_where_no_tools_were_offered() -> None:
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert parse_completion(text, with_calls=False) == {"role": "assistant", "content": text}
