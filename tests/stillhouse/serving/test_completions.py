import random

import pytest
from transformers import PreTrainedTokenizerBase

from stillhouse.serving.completions import CompletionText


def read(tokenizer: PreTrainedTokenizerBase, ids: list[int], *stop: str) -> str:
    """Return the text of a completion whose tokens are read until a stop string."""
    text = CompletionText(tokenizer, {2}, stop)
    for token in ids:
        if text.read(token):
            break
    return text.of(ids)


def test_tokens_read_one_by_one_give_the_text_of_all_of_them(tokenizer: PreTrainedTokenizerBase) -> None:
    rng = random.Random(0)
    for _ in range(50):
        ids = [rng.choice([*range(3, 619)]) for _ in range(40)]
        assert read(tokenizer, ids) == tokenizer.decode(ids, skip_special_tokens=True)


def test_a_character_of_several_tokens_is_whole_or_shown_as_part_at_the_end(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    ids = tokenizer("é🥚")["input_ids"]
    assert len(ids) > 4
    assert (read(tokenizer, ids), read(tokenizer, ids[:-1])) == ("é🥚", "é\ufffd")


def test_the_token_that_ends_a_completion_is_no_text(tokenizer: PreTrainedTokenizerBase) -> None:
    assert read(tokenizer, [*tokenizer("ab")["input_ids"], 2]) == "ab"


@pytest.mark.parametrize(
    ("text", "stop", "left"),
    [
        ("one two three", ("two",), "one "),
        ("one two three", ("o th", "two t"), "one "),
        ("one two three", ("one two", "two"), ""),
        ("one two three", ("two three", "o"), ""),
        ("abcd", ("abcd", "bc"), "a"),
        ("aaab", ("aab",), "a"),
        ("abcabd", ("abd",), "abc"),
        ("stop", ("stop",), ""),
        ("no such", ("stop", "suchlike"), "no such"),
        ("ends in sto", ("stop",), "ends in sto"),
        ("é🥚ok", ("🥚",), "é"),
        ("line\n\nnext", ("\n\n",), "line"),
    ],
)
def test_text_is_cut_before_the_first_stop_string_however_tokens_lie(
    tokenizer: PreTrainedTokenizerBase, text: str, stop: tuple[str, ...], left: str
) -> None:
    by_character = [token for character in text for token in tokenizer(character)["input_ids"]]
    for ids in (tokenizer(text)["input_ids"], by_character):
        assert read(tokenizer, ids, *stop) == left


def test_the_completion_ends_with_the_token_that_completes_the_stop_string(tokenizer: PreTrainedTokenizerBase) -> None:
    text = CompletionText(tokenizer, {2}, ["bc"])
    ids = [token for character in "abcd" for token in tokenizer(character)["input_ids"]]
    assert [text.read(token) for token in ids[:3]] == [False, False, True]


@pytest.mark.parametrize(("skip_special_tokens", "expected"), [(True, "ab"), (False, "a<|im_start|>b")])
def test_a_text_that_is_not_read_before_the_end_is_the_same(
    tokenizer: PreTrainedTokenizerBase, skip_special_tokens: bool, expected: str
) -> None:
    ids = tokenizer("a<|im_start|>b<|im_end|>")["input_ids"]
    for is_read in (False, True):
        text = CompletionText(tokenizer, {2}, skip_special_tokens=skip_special_tokens)
        assert not is_read or not any(text.read(token) for token in ids)
        assert text.of(ids) == expected
