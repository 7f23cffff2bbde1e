import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhouse.labels.repetition import repetition

WORDS = st.lists(st.sampled_from(["one", "Two", "drei", "四", "5"]), max_size=60)


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
