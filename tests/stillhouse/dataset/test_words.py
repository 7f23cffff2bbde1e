import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhouse.dataset.words import ngram_hashes, normalised, word_hashes, words, words_and_signs


@given(st.text())
def test_normalising_twice_changes_nothing_that_counts(text: str) -> None:
    once = normalised(text)
    assert once == once.strip()
    assert words(normalised(once.upper())) == words(normalised(once.casefold().upper()))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("What's 2+3?", ["what", "s", "2", "3"]),
        (r"\frac{1}{2}", ["frac", "1", "2"]),
        ("\u4eca\u65e5\u306f sunny", ["\u4eca", "\u65e5", "\u306f", "sunny"]),
        ("\u0939\u093f\u0928\u094d\u0926\u0940", ["\u0939\u093f\u0928\u094d\u0926\u0940"]),
    ],
)
def test_words_are_what_space_and_signs_part(text: str, expected: list[str]) -> None:
    assert words(normalised(text)) == expected


def test_signs_can_be_words_so_that_a_minus_is_no_plus() -> None:
    assert words_and_signs("3-2") == ["3", "-", "2"]
    assert words_and_signs("3\u22122") != words_and_signs("3+2")


@given(st.lists(st.sampled_from("abc"), max_size=20), st.integers(1, 6))
def test_runs_have_equal_hashes_where_their_words_are_equal(spelled: list[str], length: int) -> None:
    hashes = ngram_hashes(word_hashes(spelled), length)
    runs = [tuple(spelled[start : start + length]) for start in range(len(spelled) - length + 1)]
    assert len(hashes) == len(runs)
    assert len(set(hashes.tolist())) == len(set(runs))


def test_hashes_are_the_same_in_every_process() -> None:
    np.testing.assert_array_equal(
        word_hashes(["sheep", ""]), np.array([0x8902F7B6A2C2172B, 0x2D06800538D394C2], np.uint64)
    )
