from typing import Any

import pytest

from stillhouse.chat.content import Call, calls_of, text_of


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
        ({"id": "c", "function": {"name": "f"}}, Call("c", "f", "")),
        ({"id": "c", "function": {"arguments": '{"a": 1}'}}, Call("c", "", '{"a": 1}')),
        ({"id": 3, "function": {"name": 7, "arguments": "x"}}, Call("", "", "x")),
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
