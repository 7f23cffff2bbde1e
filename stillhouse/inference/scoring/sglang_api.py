"""Scores from SGLang's `/generate`."""

from collections.abc import Sequence
from itertools import chain, compress
from operator import itemgetter

from stillhouse.inference.scoring.api import (
    TokenSequence,
    WrongAnswer,
    check_first,
    checked_logprobs,
    listed,
    top_logprobs,
)
from stillhouse.inference.scoring.scores import SequenceScores, TopLogprobs
from stillhouse.types import JsonObject


class SglangApi:
    """Requests to an SGLang server and what its answers say.

    It answers one object a prompt, whose `meta_info.input_token_logprobs` has a triple (log-probability, token id, text
    or None) for each token from `logprob_start_len` on (https://docs.sglang.io/basic_usage/native_api.html and its
    scheduler's code). The first triple has no log-probability, wherever it starts. Tokens before the start can come
    from the server's prefix cache, so it starts just before the first scored token. `input_top_logprobs` has a list of
    such triples for each token, and None for the first.
    """

    path = "/generate"

    def __init__(self, *, top_k: int = 0) -> None:
        self._top_k = top_k

    def body(self, sequences: Sequence[TokenSequence], temperature: float, *, spelt: bool = False) -> JsonObject:
        return {
            "input_ids": [sequence.token_ids for sequence in sequences],
            "sampling_params": {"max_new_tokens": 0, "temperature": temperature},
            "return_logprob": True,
            "logprob_start_len": [_start(sequence) for sequence in sequences],
            "return_text_in_logprobs": spelt,
            **({"top_logprobs_num": self._top_k} if self._top_k else {}),
        }

    def scores(self, answer: object, sequences: Sequence[TokenSequence]) -> list[SequenceScores]:
        scores = []
        for sequence, meta in zip(sequences, _metas(answer, len(sequences)), strict=True):
            is_scored = sequence.loss_mask[_start(sequence) :]
            logprobs, tokens, _ = zip(*compress(_triples(meta, sequence), is_scored), strict=True)
            top = _top(meta, is_scored, self._top_k) if self._top_k else None
            scores.append(SequenceScores(checked_logprobs(logprobs, tokens), top))
        return scores

    def spellings(self, answer: object, sequence: TokenSequence) -> list[str | None]:
        [meta] = _metas(answer, 1)
        return [None] * _start(sequence) + [triple[2] for triple in _triples(meta, sequence)]


def _start(sequence: TokenSequence) -> int:
    """Return the token before the first that is scored."""
    return sequence.loss_mask.index(True) - 1


def _metas(answer: object, count: int) -> list[JsonObject]:
    results = answer if isinstance(answer, list) else [answer]
    if len(results) != count:
        raise WrongAnswer(f"it has {len(results)} results for {count} prompts")
    return [result.get("meta_info") or {} if isinstance(result, dict) else {} for result in results]


def _triples(meta: JsonObject, sequence: TokenSequence) -> list[list]:
    expected = sequence.token_ids[_start(sequence) :]
    triples = listed(meta.get("input_token_logprobs"), "meta_info.input_token_logprobs", len(expected))
    _check_triples(triples, "input_token_logprobs")
    if [triple[1] for triple in triples] != expected:
        raise WrongAnswer("input_token_logprobs are those of other tokens than were asked for")
    if _start(sequence) == 0:
        check_first(triples[0][0])
    return triples


def _top(meta: JsonObject, is_scored: Sequence[bool], top_k: int) -> TopLogprobs:
    tops = listed(meta.get("input_top_logprobs"), "meta_info.input_top_logprobs", len(is_scored))
    lists = list(compress(tops, is_scored))
    if not all(isinstance(best, list) for best in lists):
        raise WrongAnswer("`meta_info.input_top_logprobs` has no list for each token")
    triples = list(chain.from_iterable(lists))
    _check_triples(triples, "input_top_logprobs")
    logprobs, ids = (list(map(itemgetter(place), triples)) for place in (0, 1))
    return top_logprobs(ids, logprobs, list(map(len, lists)), top_k)


def _check_triples(triples: list, name: str) -> None:
    if triples and (set(map(type, triples)) != {list} or set(map(len, triples)) != {3}):
        raise WrongAnswer(f"it has no triples in `meta_info.{name}`")
