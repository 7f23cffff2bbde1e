from typing import Any

import pytest

from stillhouse.chat.content import Call, calls_of, reasoning_of, text_of


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("4", "4"),
        (None, ""),
        ([], ""),
        ([{"type": "text", "text": "in "}, {"type": "image_url"}, {"type": "text", "text": "parts"}], "in parts"),
        ([{"type": "text"}, {"type": "text", "text": None}, {"type": "thinking", "text": "hm"}, 3, None], ""),
    ],
)
def test_the_text_of_a_message_is_what_its_content_says_in_words(content: Any, text: str) -> None:
    assert text_of({"role": "assistant", "content": content}) == text


@pytest.mark.parametrize(
    ("written", "call"),
    [
        (
            {"id": "c", "function": {"name": "f", "arguments": {"b": [1, "é"], "a": None}}},
            Call("c", "f", '{"b":[1,"é"],"a":null}'),
        ),
        ({"id": "c", "function": {"name": "f"}}, Call("c", "f", "{}")),
        ({"id": "c", "function": {"arguments": '{"a": 1}'}}, Call("c", "", '{"a": 1}')),
        ({"id": 3, "function": {"name": 7, "arguments": "x"}}, Call("", "", "x")),
        *(
            ({"id": "c", "function": {"name": "f", "arguments": nothing}}, Call("c", "f", "{}"))
            for nothing in (None, "", " \n", "null", " null ")
        ),
        ({"id": "c", "function": {"name": "f", "arguments": '"{\\"a\\": 1}"'}}, Call("c", "f", '{"a": 1}')),
        *(
            ({"id": "c", "function": {"name": "f", "arguments": text}}, Call("c", "f", text))
            for text in ('{"a": 1', "[1]", '{"a": 1}{}', '"text"', '"[1]"', '"{"', "7")
        ),
        ({"id": "c", "function": None}, Call("c", "", "")),
        ("f(1)", Call("", "", "")),
    ],
)
def test_a_call_is_text_however_an_endpoint_wrote_it(written: Any, call: Call) -> None:
    sound = {"id": "d", "type": "function", "function": {"name": "g", "arguments": '{"k":  1}'}}
    assert calls_of({"role": "assistant", "content": None, "tool_calls": [written, sound]}) == [
        call,
        Call("d", "g", '{"k":  1}'),
    ]


@pytest.mark.parametrize("message", [{"role": "user"}, {"role": "assistant", "content": None, "tool_calls": []}])
def test_a_message_without_text_or_calls_has_none(message: Any) -> None:
    assert (text_of(message), calls_of(message)) == ("", [])


@pytest.mark.parametrize(
    ("written", "reasoning"),
    [
        ({"reasoning_content": "carry"}, "carry"),
        ({"reasoning": "carry"}, "carry"),
        ({"reasoning_content": "", "reasoning": "carry"}, "carry"),
        ({"reasoning": "carry", "reasoning_content": "carry"}, "carry"),
        ({"thinking": "carry"}, "carry"),
        ({"reasoning_text": "carry", "reasoning_opaque": "x"}, "carry"),
        ({"thinking_blocks": [{"type": "thinking", "thinking": "carry", "signature": "x"}]}, "carry"),
        ({"reasoning_details": [{"type": "reasoning.text", "text": part} for part in ("car", "ry")]}, "carry"),
        ({"reasoning_details": [{"type": "reasoning.summary", "summary": "carry"}]}, "carry"),
        ({"reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]}, ""),
        ({"reasoning_content": [{"type": "text", "text": "carry"}]}, "carry"),
        ({"content": [{"type": "thinking", "thinking": "carry"}, {"type": "text", "text": "4"}]}, "carry"),
        ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "carry"}]}]}, "carry"),
        ({"content": [{"type": "redacted_thinking", "data": "x"}]}, ""),
        ({"content": "4"}, ""),
        ({}, ""),
    ],
)  # fmt: skip
def test_reasoning_is_found_wherever_an_endpoint_wrote_it(written: Any, reasoning: str) -> None:
    assert reasoning_of({"role": "assistant", **written}) == reasoning
