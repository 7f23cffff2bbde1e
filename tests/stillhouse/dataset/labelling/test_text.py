import gzip
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhouse.dataset.label_input import LabelInput
from stillhouse.dataset.labelling.text import (
    MIN_COMPRESSED_BYTES,
    compression_ratio,
    repetition,
    text_labels,
    without_code,
)

WORDS = st.lists(st.sampled_from(["one", "Two", "drei", "四", "5"]), max_size=60)


def test_lengths_count_what_each_side_wrote(make_input: Callable[..., LabelInput]) -> None:
    labels = text_labels([make_input("Five."), make_input(None)])
    assert labels["has_answer"] == [True, False]
    assert labels["answer_chars"] == [5, None]
    question, call = "Anna has 2 apples. Anna buys 3 more. Case 0.", '{"expression": "2 + 3"}'
    assert labels["prompt_chars"] == [len(question)] * 2
    assert labels["sampled_chars"] == [len(call) + len("\nFive."), len(call)]


@given(WORDS)
def test_repetition_is_a_share(words: list[str]) -> None:
    value = repetition(" ".join(words))
    assert value is None if len(words) < 5 else value is not None and 0 <= value < 1


@given(st.integers(5, 300))
def test_distinct_words_repeat_nothing(num_words: int) -> None:
    assert repetition(" ".join(f"w{number}" for number in range(num_words))) == 0


@given(WORDS.filter(lambda words: len(words) >= 5), st.integers(2, 4))
def test_of_a_text_told_again_little_is_new(words: list[str], times: int) -> None:
    again = repetition(" ".join(words * times))
    assert again is not None
    assert again >= 1 - len(words) / (len(words) * times - 4)


def test_repetition_counts_ngrams_that_came_before() -> None:
    # Ngrams of a b c d e a b c d e: abcde bcdea cdeab deabc eabcd abcde.
    assert repetition("A b c d e, a b c d e!") == pytest.approx(1 / 6)


def test_characters_of_scripts_without_spaces_are_words() -> None:
    assert repetition("我们来计算总数我们来计算总数") == pytest.approx(3 / 10)
    assert repetition("我们来计") is None


def test_the_compression_ratio_is_that_of_gzip() -> None:
    text = "The total is the sum of its parts, each of which was given above. " * 8
    assert compression_ratio(text) == len(gzip.compress(text.encode())) / len(text)


def test_loops_without_words_compress_far_and_prose_does_not() -> None:
    prose = (
        "Anna has two apples and buys three more at the market, so she holds five. Ben owns twice as many pears as "
        "that, which makes ten, but he gives four of them to his sister. Together they therefore keep eleven pieces of "
        "fruit at the end of the day, not counting what the sister had before."
    )
    loop_ratio, prose_ratio = compression_ratio("=-" * 400), compression_ratio(prose)
    assert loop_ratio < 0.1 < 0.42 < prose_ratio
    assert repetition("=-" * 400) is None


def test_a_text_too_short_to_compress_has_no_ratio() -> None:
    assert compression_ratio("a" * (MIN_COMPRESSED_BYTES - 1)) is None
    assert compression_ratio("a" * MIN_COMPRESSED_BYTES) is not None
    assert compression_ratio("é" * (MIN_COMPRESSED_BYTES // 2)) is not None


@given(st.text(alphabet="a`~ \n>-1."))
def test_every_character_stands_where_it_stood(text: str) -> None:
    prose, open_line = without_code(text)
    assert len(prose) == len(text)
    assert all(kept in (written, " ") for kept, written in zip(prose, text, strict=True))
    assert [place for place, c in enumerate(prose) if c == "\n"] == [place for place, c in enumerate(text) if c == "\n"]
    assert open_line is None or 1 <= open_line <= text.count("\n") + 1


@pytest.mark.parametrize(
    ("text", "prose", "open_line"),
    [
        ("a\n```python\nb\n```\nc", "a c", None),
        ("a\n~~~\n```\n~~~\nc", "a c", None),
        ("a\n````\n```\nb\n````\nc", "a c", None),
        ("1. ```sh\n   b\n   ```\nc", "c", None),
        ("> ```\n> b\n> ```\nc", "c", None),
        ("say `b` twice, ``b``", "say twice,", None),
        ("```b``` on one line", "```b``` on one line", None),
        ("a `b\nc` d", "a `b c` d", None),
        ("a\n```python\nb", "a ```python b", 2),
        ("a\n```\nb\n```\n```\nc", "a ``` c", 5),
        ("a\n```\nb\n``` python\nc", "a ``` b ``` python c", 2),
    ],
)
def test_code_is_left_out(text: str, prose: str, open_line: int | None) -> None:
    found = without_code(text)
    assert (" ".join(found.text.split()), found.open_line) == (prose, open_line)
