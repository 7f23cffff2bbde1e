"""Scores from SGLang's `/generate`."""

from collections.abc import Sequence
from itertools import chain, compress
from operator import itemgetter

from stillhouse.inference.scoring.api import TokenSequence, WrongAnswer, checked_logprobs, top_logprobs
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
        tops = _top_triples(answer, sequences) if self._top_k else [[]] * len(sequences)
        for sequence, triples, listed in zip(sequences, _triples(answer, sequences), tops, strict=True):
            is_scored = sequence.loss_mask[_start(sequence) :]
            logprobs, tokens, _ = zip(*compress(triples, is_scored), strict=True)
            top = _top(list(compress(listed, is_scored)), self._top_k) if self._top_k else None
            scores.append(SequenceScores(checked_logprobs(logprobs, tokens), top))
        return scores

    def spellings(self, answer: object, sequence: TokenSequence) -> list[str | None]:
        [triples] = _triples(answer, [sequence])
        return [None] * _start(sequence) + [triple[2] for triple in triples]


def _start(sequence: TokenSequence) -> int:
    """Return the token before the first that is scored."""
    return sequence.loss_mask.index(True) - 1


def _triples(answer: object, sequences: Sequence[TokenSequence]) -> list[list[Sequence]]:
    results = answer if isinstance(answer, list) else [answer]
    if len(results) != len(sequences):
        raise WrongAnswer(f"it has {len(results)} results for {len(sequences)} prompts")
    lists = []
    for result, sequence in zip(results, sequences, strict=True):
        meta = result.get("meta_info") if isinstance(result, dict) else None
        triples = meta.get("input_token_logprobs") if isinstance(meta, dict) else None
        if not isinstance(triples, list) or not all(isinstance(t, list) and len(t) == 3 for t in triples):
            raise WrongAnswer("it has no triples in `meta_info.input_token_logprobs`")
        expected = sequence.token_ids[_start(sequence) :]
        if [triple[1] for triple in triples] != expected:
            raise WrongAnswer(
                f"input_token_logprobs are those of {len(triples)} other tokens than the {len(expected)} asked for"
            )
        if _start(sequence) == 0 and triples[0][0] is not None:
            raise WrongAnswer("the first token has a log-probability, though nothing stands before it; expected None")
        lists.append(triples)
    return lists


def _top_triples(answer: object, sequences: Sequence[TokenSequence]) -> list[list[list]]:
    results = answer if isinstance(answer, list) else [answer]
    lists = []
    for result, sequence in zip(results, sequences, strict=True):
        tops = result["meta_info"].get("input_top_logprobs")
        count = len(sequence.token_ids) - _start(sequence)
        if not isinstance(tops, list) or len(tops) != count or not all(isinstance(best, list) for best in tops[1:]):
            raise WrongAnswer(f"`meta_info.input_top_logprobs` has no list for each of {count} tokens")
        triples = list(chain.from_iterable(tops[1:]))
        if triples and (set(map(type, triples)) != {list} or set(map(len, triples)) != {3}):
            raise WrongAnswer("it has no triples in `meta_info.input_top_logprobs`")
        lists.append([[], *tops[1:]])
    return lists


def _top(lists: Sequence[Sequence[Sequence]], top_k: int) -> TopLogprobs:
    triples = list(chain.from_iterable(lists))
    logprobs, ids = (list(map(itemgetter(place), triples)) for place in (0, 1))
    return top_logprobs(ids, logprobs, list(map(len, lists)), top_k)
