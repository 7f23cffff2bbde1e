"""What is scored, and the forms of request and answer of the servers that score it.

`VllmApi` and `EchoApi` ask `/v1/completions`, `SglangApi` asks `/generate`.
"""

import math
from collections.abc import Sequence
from typing import Final, Protocol

from stillhouse.types import JsonObject

_AS_ID: Final = "token_id:"
_LEAST: Final = -9999.0  # written by vLLM and others for minus infinity, which JSON does not have
_ROUNDING: Final = 1e-3


class TokenSequence(Protocol):
    """A sequence of tokens of which some are scored. Both lists are aligned."""

    @property
    def token_ids(self) -> list[int]:
        """The tokens that the model reads."""

    @property
    def loss_mask(self) -> list[bool]:
        """True at the tokens that are scored, never the first."""


class ScoringApi(Protocol):
    """The form of request and answer of one kind of server."""

    path: str
    """Of the route, from the server's root."""

    def body(self, sequences: Sequence[TokenSequence], temperature: float, *, spelt: bool = False) -> JsonObject:
        """The request for all sequences; `spelt` asks for the texts of tokens, where answers may lack them."""

    def logprobs(self, answer: object, sequences: Sequence[TokenSequence]) -> list[list[float]]:
        """Log-probabilities of the scored tokens of each sequence.

        Raises:
            WrongAnswer: the answer does not hold them.
        """

    def spellings(self, answer: object, sequence: TokenSequence) -> list[str | None]:
        """How the server writes each token of the one sequence; None where it does not say."""


class WrongAnswer(Exception):
    """An answer with HTTP 200 that lacks the scores; another attempt is useless."""


def checked_logprob(value: object, token: int) -> float:
    """A log-probability of at most 0.

    Raises:
        WrongAnswer: no loss can be computed from it.
    """
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise WrongAnswer(f"the log-probability of token {token} is {value!r}; expected a number")
    if not math.isfinite(value) or not _LEAST < value <= _ROUNDING:
        raise WrongAnswer(
            f"the log-probability of token {token} is {value}; expected a finite number of at most 0. A token of "
            "no probability is one that the teacher does not know: check that the server has the student's vocabulary "
            "and restricts no tokens"
        )
    return min(float(value), 0.0)


def ordered_choices(answer: object, count: int) -> list[JsonObject]:
    """The choices of a completion, in the order of the prompts.

    Raises:
        WrongAnswer: there are not `count` of them.
    """
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise WrongAnswer("it has no `choices`")
    indices = [choice.get("index") for choice in choices]
    if len(indices) != count or any(index not in indices for index in range(count)):
        raise WrongAnswer(f"it has choices {indices} for {count} prompts")
    return [choices[indices.index(index)] for index in range(count)]


class VllmApi:
    """Requests to a vLLM server and what its answers say.

    `choices[i].prompt_logprobs` has None for the first token and for each other a JSON object by token id as text
    (https://docs.vllm.ai/en/latest/api/vllm/sampling_params.html and its OpenAI server's code). The prompt's token is
    always in it, at any place, whatever number of alternatives is requested; 0 requests it alone, which no
    `--max-logprobs` forbids. One token must be generated. A probability of 0 is written as -9999.
    """

    path = "/v1/completions"

    def __init__(self, model: str) -> None:
        self._model = model

    def body(self, sequences: Sequence[TokenSequence], temperature: float, *, spelt: bool = False) -> JsonObject:
        return {
            "model": self._model,
            "prompt": [sequence.token_ids for sequence in sequences],
            "max_tokens": 1,
            "temperature": temperature,
            "prompt_logprobs": 0,
        }

    def logprobs(self, answer: object, sequences: Sequence[TokenSequence]) -> list[list[float]]:
        return [
            [
                checked_logprob(_entry(entry, token).get("logprob"), token)
                for entry, token, is_scored in zip(entries, sequence.token_ids, sequence.loss_mask, strict=True)
                if is_scored
            ]
            for sequence, entries in zip(sequences, _entries(answer, sequences), strict=True)
        ]

    def spellings(self, answer: object, sequence: TokenSequence) -> list[str | None]:
        [entries] = _entries(answer, [sequence])
        return [
            _entry(entry, token).get("decoded_token") if entry else None
            for entry, token in zip(entries, sequence.token_ids, strict=True)
        ]


def _entries(answer: object, sequences: Sequence[TokenSequence]) -> list[list[JsonObject]]:
    lists = []
    for choice, sequence in zip(ordered_choices(answer, len(sequences)), sequences, strict=True):
        entries = choice.get("prompt_logprobs")
        if not isinstance(entries, list):
            raise WrongAnswer("it has no `prompt_logprobs`")
        if len(entries) != len(sequence.token_ids):
            raise WrongAnswer(f"it has {len(entries)} prompt_logprobs for {len(sequence.token_ids)} tokens")
        if entries[0] is not None:
            raise WrongAnswer("the first token has a log-probability, though nothing stands before it; expected None")
        lists.append(entries)
    return lists


def _entry(entry: object, token: int) -> JsonObject:
    actual = entry.get(str(token)) if isinstance(entry, dict) else None
    if not isinstance(actual, dict):
        seen = sorted(entry) if isinstance(entry, dict) else entry
        raise WrongAnswer(f"the log-probability of token {token} is missing; there are those of {seen}")
    return actual


class EchoApi:
    """Requests to a server with `echo` and what its answers say.

    `choices[i].logprobs.token_logprobs` has None for the first token, and an entry for each generated one at the end
    (https://platform.openai.com/docs/api-reference/completions). `tokens` are texts, in which parts of a character are
    all alike; vLLM and others write `token_id:123` where `return_tokens_as_token_ids` is set.

    Args:
        with_ids: ask for token ids in place of their texts, which some servers refuse.
    """

    path = "/v1/completions"

    def __init__(self, model: str, *, with_ids: bool = True) -> None:
        self._model = model
        self._with_ids = with_ids

    def body(self, sequences: Sequence[TokenSequence], temperature: float, *, spelt: bool = False) -> JsonObject:
        body: JsonObject = {
            "model": self._model,
            "prompt": [sequence.token_ids for sequence in sequences],
            "max_tokens": 1,
            "temperature": temperature,
            "echo": True,
            # 0 stands for none at all on some servers.
            "logprobs": 1,
        }
        return body | {"return_tokens_as_token_ids": True} if self._with_ids and not spelt else body

    def logprobs(self, answer: object, sequences: Sequence[TokenSequence]) -> list[list[float]]:
        scores = []
        for choice, sequence in zip(ordered_choices(answer, len(sequences)), sequences, strict=True):
            tokens, logprobs = _echoed_lists(choice, len(sequence.token_ids))
            for token, token_id in zip(tokens, sequence.token_ids, strict=True):
                if str(token).startswith(_AS_ID) and token != f"{_AS_ID}{token_id}":
                    raise WrongAnswer(f"it echoes {token} in place of token {token_id}")
            scored = zip(logprobs, sequence.token_ids, sequence.loss_mask, strict=True)
            scores.append([checked_logprob(logprob, token) for logprob, token, is_scored in scored if is_scored])
        return scores

    def spellings(self, answer: object, sequence: TokenSequence) -> list[str | None]:
        [choice] = ordered_choices(answer, 1)
        tokens, _ = _echoed_lists(choice, len(sequence.token_ids))
        return [None if str(token).startswith(_AS_ID) else str(token) for token in tokens]


def _echoed_lists(choice: JsonObject, num_tokens: int) -> tuple[list, list]:
    """Tokens and log-probabilities of the prompt, without the generated token behind them."""
    echoed = choice.get("logprobs")
    if not isinstance(echoed, dict):
        raise WrongAnswer("it has no `logprobs`")
    tokens, logprobs = echoed.get("tokens"), echoed.get("token_logprobs")
    if not isinstance(tokens, list) or not isinstance(logprobs, list) or len(tokens) != len(logprobs):
        raise WrongAnswer("`logprobs` has no `tokens` and `token_logprobs` of one length")
    if len(tokens) - num_tokens not in (0, 1):
        raise WrongAnswer(f"it has {len(tokens)} echoed tokens for {num_tokens} and one that is generated")
    if logprobs[0] is not None:
        raise WrongAnswer("the first token has a log-probability, though nothing stands before it; expected None")
    return tokens[:num_tokens], logprobs[:num_tokens]


class SglangApi:
    """Requests to an SGLang server and what its answers say.

    It answers one object a prompt, whose `meta_info.input_token_logprobs` has a triple (log-probability, token id, text
    or None) for each token from `logprob_start_len` on (https://docs.sglang.io/basic_usage/native_api.html and its
    scheduler's code). The first triple has no log-probability, wherever it starts. Tokens before the start can come
    from the server's prefix cache, so it starts just before the first scored token.
    """

    path = "/generate"

    def body(self, sequences: Sequence[TokenSequence], temperature: float, *, spelt: bool = False) -> JsonObject:
        return {
            "input_ids": [sequence.token_ids for sequence in sequences],
            "sampling_params": {"max_new_tokens": 0, "temperature": temperature},
            "return_logprob": True,
            "logprob_start_len": [_start(sequence) for sequence in sequences],
            "return_text_in_logprobs": spelt,
        }

    def logprobs(self, answer: object, sequences: Sequence[TokenSequence]) -> list[list[float]]:
        return [
            [
                checked_logprob(triple[0], triple[1])
                for triple, is_scored in zip(triples, sequence.loss_mask[_start(sequence) :], strict=True)
                if is_scored
            ]
            for sequence, triples in zip(sequences, _triples(answer, sequences), strict=True)
        ]

    def spellings(self, answer: object, sequence: TokenSequence) -> list[str | None]:
        [triples] = _triples(answer, [sequence])
        return [None] * _start(sequence) + [triple[2] for triple in triples]


def _start(sequence: TokenSequence) -> int:
    """The token before the first that is scored."""
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
