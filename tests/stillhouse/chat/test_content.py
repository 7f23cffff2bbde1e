from typing import Any

import pytest

from stillhouse.chat.content import text_of


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


def test_a_message_without_content_has_no_text() -> None:
    assert text_of({"role": "assistant"}) == ""
