"""Scores from `/v1/completions`: vLLM's `prompt_logprobs`, and `echo` as OpenAI has it."""

from collections.abc import Sequence
from itertools import chain, compress
from typing import Final

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

_AS_ID: Final = "token_id:"


class VllmApi:
    """Requests to a vLLM server and what its answers say.

    `choices[i].prompt_logprobs` has None for the first token and for each other a JSON object by token id as text
    (https://docs.vllm.ai/en/latest/api/vllm/sampling_params.html and its OpenAI server's code). The prompt's token is
    always in it, at any place, whatever number of alternatives is requested; 0 requests it alone, which no
    `--max-logprobs` forbids. One token must be generated. A probability of 0 is written as -9999.
    """

    path = "/v1/completions"

    def __init__(self, model: str, *, top_k: int = 0) -> None:
        self._model = model
        self._top_k = top_k

    def body(self, sequences: Sequence[TokenSequence], temperature: float, *, spelt: bool = False) -> JsonObject:
        return _body(self._model, sequences, temperature) | {"prompt_logprobs": self._top_k}

    def scores(self, answer: object, sequences: Sequence[TokenSequence]) -> list[SequenceScores]:
        scores = []
        for sequence, lists in zip(sequences, _entries(answer, sequences), strict=True):
            entries = list(compress(lists, sequence.loss_mask))
            tokens = list(compress(sequence.token_ids, sequence.loss_mask))
            logprobs = [_entry(entry, token).get("logprob") for entry, token in zip(entries, tokens, strict=True)]
            top = _top(entries, self._top_k) if self._top_k else None
            scores.append(SequenceScores(checked_logprobs(logprobs, tokens), top))
        return scores

    def spellings(self, answer: object, sequence: TokenSequence) -> list[str | None]:
        [entries] = _entries(answer, [sequence])
        return [
            _entry(entry, token).get("decoded_token") if entry else None
            for entry, token in zip(entries, sequence.token_ids, strict=True)
        ]


def _entries(answer: object, sequences: Sequence[TokenSequence]) -> list[list[JsonObject]]:
    lists = [
        listed(choice.get("prompt_logprobs"), "prompt_logprobs", len(sequence.token_ids))
        for choice, sequence in zip(_ordered_choices(answer, len(sequences)), sequences, strict=True)
    ]
    for entries in lists:
        check_first(entries[0])
    return lists


def _entry(entry: object, token: int) -> JsonObject:
    actual = entry.get(str(token)) if isinstance(entry, dict) else None
    if not isinstance(actual, dict):
        seen = sorted(entry) if isinstance(entry, dict) else entry
        raise WrongAnswer(f"the log-probability of token {token} is missing; there are those of {seen}")
    return actual


def _top(entries: Sequence[JsonObject], top_k: int) -> TopLogprobs:
    try:
        ids = list(map(int, chain.from_iterable(entries)))
        logprobs = [listed.get("logprob") for entry in entries for listed in entry.values()]
    except (ValueError, AttributeError) as error:
        raise WrongAnswer(f"prompt_logprobs has other entries than objects by token id: {error}") from error
    return top_logprobs(ids, logprobs, list(map(len, entries)), top_k)


class EchoApi:
    """Requests to a server with `echo` and what its answers say.

    `choices[i].logprobs.token_logprobs` has None for the first token, and an entry for each generated one at the end
    (https://platform.openai.com/docs/api-reference/completions). `tokens` are texts, in which parts of a character are
    all alike; vLLM and others write `token_id:123` where `return_tokens_as_token_ids` is set
    (`with_ids`), which some servers refuse.
    """

    path = "/v1/completions"

    def __init__(self, model: str, *, with_ids: bool = True) -> None:
        self._model = model
        self._with_ids = with_ids

    def body(self, sequences: Sequence[TokenSequence], temperature: float, *, spelt: bool = False) -> JsonObject:
        # 0 stands for none at all on some servers.
        body = _body(self._model, sequences, temperature) | {"echo": True, "logprobs": 1}
        return body | {"return_tokens_as_token_ids": True} if self._with_ids and not spelt else body

    def scores(self, answer: object, sequences: Sequence[TokenSequence]) -> list[SequenceScores]:
        scores = []
        for choice, sequence in zip(_ordered_choices(answer, len(sequences)), sequences, strict=True):
            tokens, logprobs = _echoed_lists(choice, len(sequence.token_ids))
            for token, token_id in zip(tokens, sequence.token_ids, strict=True):
                if str(token).startswith(_AS_ID) and token != f"{_AS_ID}{token_id}":
                    raise WrongAnswer(f"it echoes {token} in place of token {token_id}")
            scored = list(compress(logprobs, sequence.loss_mask))
            ids = list(compress(sequence.token_ids, sequence.loss_mask))
            scores.append(SequenceScores(checked_logprobs(scored, ids)))
        return scores

    def spellings(self, answer: object, sequence: TokenSequence) -> list[str | None]:
        [choice] = _ordered_choices(answer, 1)
        tokens, _ = _echoed_lists(choice, len(sequence.token_ids))
        return [None if str(token).startswith(_AS_ID) else str(token) for token in tokens]


def _echoed_lists(choice: JsonObject, num_tokens: int) -> tuple[list, list]:
    """Return the tokens and log-probabilities of the prompt, without the generated token behind them."""
    echoed = choice.get("logprobs")
    if not isinstance(echoed, dict):
        raise WrongAnswer("it has no `logprobs`")
    tokens, logprobs = echoed.get("tokens"), echoed.get("token_logprobs")
    if not isinstance(tokens, list) or not isinstance(logprobs, list) or len(tokens) != len(logprobs):
        raise WrongAnswer("`logprobs` has no `tokens` and `token_logprobs` of one length")
    if len(tokens) - num_tokens not in (0, 1):
        raise WrongAnswer(f"it has {len(tokens)} echoed tokens for {num_tokens} and one that is generated")
    check_first(logprobs[0])
    return tokens[:num_tokens], logprobs[:num_tokens]


def _body(model: str, sequences: Sequence[TokenSequence], temperature: float) -> JsonObject:
    prompts = [sequence.token_ids for sequence in sequences]
    return {"model": model, "prompt": prompts, "max_tokens": 1, "temperature": temperature}


def _ordered_choices(answer: object, count: int) -> list[JsonObject]:
    """Return the choices in the order of the prompts; raise WrongAnswer if there are not `count` of them."""
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise WrongAnswer("it has no `choices`")
    indices = [choice.get("index") for choice in choices]
    if len(indices) != count or any(index not in indices for index in range(count)):
        raise WrongAnswer(f"it has choices {indices} for {count} prompts")
    return [choices[indices.index(index)] for index in range(count)]
