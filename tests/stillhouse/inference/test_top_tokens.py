import math
import tracemalloc
from base64 import b64decode
from typing import Any

import numpy as np
import pytest

from stillhouse.inference.top_tokens import UNKNOWN, TopTokens, read_top_tokens
from tests.provider.logprobs import token_logprobs, words_of

VOCABULARY = [(f"t{number % 10_000}", -0.5 - number % 10_000) for number in range(5000, 15_000)]


def entry(token: str, logprob: float, **keys: Any) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": None, **keys}


def sampled(token: str, logprob: float, *best: tuple[str, float]) -> dict[str, Any]:
    return {"content": [entry(token, logprob, top_logprobs=[entry(*pair) for pair in best])]}


def read(logprobs: Any, top_k: int) -> TopTokens:
    top = read_top_tokens(logprobs, top_k)
    assert top is not None
    return top


def test_texts_become_their_bytes_and_the_rest_of_the_mass_the_tail() -> None:
    top = read(token_logprobs(words_of("Grün ist 4"), 3), 3)
    assert top.spellings is not None
    assert [top.spellings[token] for token in top.tokens_N] == ["Grün".encode(), b" ist", b" 4"]
    assert top.top.ids_NK[:, 0].tolist() == top.tokens_N.tolist()
    assert top.logprobs_N == pytest.approx(np.log([0.75] * 3))
    assert top.top.logprobs_NK[0] == pytest.approx(np.log([0.75, 0.75 / 4, 0.75 / 16]), rel=1e-3)
    assert top.top.log_tail_N == pytest.approx([math.log(1 / 64)] * 3, rel=1e-3)


def test_ids_stay_ids_and_are_in_the_order_of_their_probability() -> None:
    top = read(sampled("token_id:7", -2.0, ("token_id:7", -2.0), ("token_id:30000", -0.2)), 2)
    assert top.spellings is None
    assert (top.tokens_N.tolist(), top.top.ids_NK.tolist()) == ([7], [[30000, 7]])


def test_a_token_that_the_endpoint_did_not_sample_from_its_best_is_none_of_them() -> None:
    top = read(sampled("token_id:9", -5.0, ("token_id:1", -0.1), ("token_id:2", -3.0)), 2)
    assert (top.tokens_N.tolist(), top.top.ids_NK.tolist()) == ([9], [[1, 2]])
    assert top.logprobs_N.tolist() == [-5.0]


def test_fewer_than_asked_are_filled_up_and_parts_of_characters_belong_to_the_others() -> None:
    top = read(sampled("\ufffd", -0.1, ("\ufffd", -0.1), ("a", -3.0), ("\ufffd", -4.0)), 4)
    assert top.tokens_N.tolist() == [UNKNOWN]
    assert top.spellings == [b"a"]
    assert top.top.ids_NK.tolist() == [[0, UNKNOWN, UNKNOWN, UNKNOWN]]
    assert top.top.logprobs_NK[0].tolist() == [-3.0, -100.0, -100.0, -100.0]
    assert top.top.log_tail_N == pytest.approx([math.log(1 - math.exp(-3.0))], rel=1e-3)


def test_bytes_of_parts_of_characters_are_taken_where_they_are_told() -> None:
    part = entry("\ufffd", -0.5, bytes=[0xC3])
    top = read({"content": [{**part, "top_logprobs": [part]}]}, 1)
    assert top.spellings == [b"\xc3"]


def test_impossible_tokens_have_the_least_log_probability() -> None:
    top = read(sampled("token_id:1", 1e-9, ("token_id:1", 1e-9), ("token_id:2", -9999.0)), 2)
    assert top.logprobs_N.tolist() == [0.0]
    assert top.top.logprobs_NK.tolist() == [[0.0, -100.0]]


@pytest.mark.parametrize("digits", ["2147483648", "1" + "0" * 20, "9" * 5000, "٣" * 11])
def test_ids_that_no_vocabulary_has_are_no_tokens(digits: str) -> None:
    top = read(sampled("token_id:7", -0.5, ("token_id:7", -0.5), (f"token_id:{digits}", -2.0)), 2)
    assert (top.tokens_N.tolist(), top.top.ids_NK.tolist()) == ([7], [[7, UNKNOWN]])


def test_a_text_that_no_token_is_as_long_as_belongs_to_the_others() -> None:
    top = read(sampled("a", -0.5, ("a", -0.5), ("b" * (1 << 16), -2.0)), 2)
    assert TopTokens.of_bytes(b64decode(top.pack())).spellings == [b"a"]


def test_numbers_that_no_float_holds_are_no_log_probabilities() -> None:
    content = sampled("a", -0.5, ("a", -0.5), ("b", -2.0))["content"]
    content[0]["top_logprobs"][1]["logprob"] = -(10**400)
    assert read({"content": content}, 2).top.ids_NK.tolist() == [[0, UNKNOWN]]


@pytest.mark.parametrize("listed", [7, True, "ab", {"a": -1.0}])
def test_alternatives_in_another_form_are_none(listed: Any) -> None:
    assert read_top_tokens({"content": [entry("a", -1.0, top_logprobs=listed)]}, 2) is None


def test_probabilities_in_place_of_their_logarithms_are_not_kept() -> None:
    assert read_top_tokens(sampled("a", 0.7, ("a", 0.7), ("b", 0.2)), 2) is None
    assert read_top_tokens(sampled("a", -0.3, ("a", 0.7), ("b", 0.2)), 2) is None


def test_a_place_with_a_whole_vocabulary_costs_no_more_than_its_entries() -> None:
    content = [*sampled("a", -0.5, ("a", -0.5))["content"] * 2000, *sampled("b", -9.0, *VOCABULARY)["content"]]
    tracemalloc.start()
    try:
        top = read({"content": content}, 3)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 50 << 20
    assert top.spellings is not None
    assert [top.spellings[token] for token in top.top.ids_NK[-1]] == [b"t0", b"t1", b"t2"]


def test_a_sampled_token_that_is_listed_twice_counts_once() -> None:
    best = (("token_id:7", -0.5), ("token_id:7", -0.5), ("token_id:8", -1.5), ("token_id:9", -3.0))
    top = read(sampled("token_id:7", -0.5, *best), 3)
    assert top.top.ids_NK.tolist() == [[7, 8, UNKNOWN]]
    assert top.top.log_tail_N == pytest.approx([math.log(1 - math.exp(-0.5) - math.exp(-1.5))], rel=1e-2)


@pytest.mark.parametrize(
    "logprobs",
    [
        *(None, {}, {"content": None}, {"content": []}, {"content": [1]}, {"content": [{"token": "a"}]}),
        *({"content": [entry("a", -1.0, **keys)]} for keys in ({}, {"top_logprobs": []})),
    ],
)
def test_without_alternatives_at_each_token_there_is_nothing_to_keep(logprobs: Any) -> None:
    assert read_top_tokens(logprobs, 2) is None


@pytest.mark.parametrize("as_ids", [True, False])
def test_what_is_packed_comes_out_to_the_bit(as_ids: bool) -> None:
    logprobs = token_logprobs(words_of("one two three " * 9), 20)
    if as_ids:
        for place, written in enumerate(logprobs["content"]):
            written["token"] = f"token_id:{place}"
            for rank, other in enumerate(written["top_logprobs"]):
                other["token"] = f"token_id:{1000 * rank + place}"
    top = read(logprobs, 20)
    again = TopTokens.of_bytes(b64decode(top.pack()))
    assert again.spellings == top.spellings
    for one, other in zip(
        (again.tokens_N, again.logprobs_N, again.top.ids_NK, again.top.logprobs_NK, again.top.log_tail_N),
        (top.tokens_N, top.logprobs_N, top.top.ids_NK, top.top.logprobs_NK, top.top.log_tail_N),
        strict=True,
    ):
        assert one.dtype == other.dtype
        assert (one == other).all()


@pytest.mark.parametrize("text", ["", "bm8gemxpYg==", "eJwDAAAAAAE="])
def test_other_bytes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="packed"):
        TopTokens.of_bytes(b64decode(text))
