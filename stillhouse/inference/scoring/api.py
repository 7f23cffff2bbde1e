"""The sequences that are scored, and what the forms of request and answer of servers have in common."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from stillhouse.inference.scoring.scores import MOST_LOGPROB, SequenceScores, TopLogprobs, best_first, numbers_of
from stillhouse.types import JsonObject

_LEAST: Final = -9999.0  # written by vLLM and others for minus infinity, which JSON does not have


class TokenSequence(Protocol):
    """A sequence of tokens of which some are scored. Both lists are aligned."""

    @property
    def token_ids(self) -> list[int]:
        """Return the tokens that the model reads."""

    @property
    def loss_mask(self) -> list[bool]:
        """Return True at the tokens that are scored, never the first."""


@dataclass(frozen=True, slots=True, eq=False)
class GivenIds:
    """A `TokenSequence` with K tokens that are scored at each of its N scored places, beside the most probable."""

    token_ids: list[int]
    loss_mask: list[bool]
    ids_NK: np.ndarray
    """int32, -1 for none."""


class ScoringApi(Protocol):
    """The form of request and answer of one kind of server."""

    path: str
    """Of the route, from the server's root."""

    def body(self, sequences: Sequence[TokenSequence], temperature: float, *, spelt: bool = False) -> JsonObject:
        """Return the request for all sequences; `spelt` asks for the texts of tokens, where answers may lack them."""

    def scores(self, answer: object, sequences: Sequence[TokenSequence]) -> list[SequenceScores]:
        """Return the scores of each sequence's scored tokens; raise WrongAnswer if the answer does not hold them."""

    def spellings(self, answer: object, sequence: TokenSequence) -> list[str | None]:
        """Return the text that the server has for each token of the one sequence; None where it does not say."""


class WrongAnswer(Exception):
    """An answer with HTTP 200 that lacks the scores; another attempt is useless."""


def listed(values: object, name: str, count: int) -> list[Any]:
    """Return the list that an answer has under `name` for `count` tokens; raise WrongAnswer if it is none."""
    if not isinstance(values, list):
        raise WrongAnswer(f"it has no `{name}`")
    if len(values) != count:
        raise WrongAnswer(f"it has {len(values)} {name} for {count} tokens")
    return values


def check_first(value: object) -> None:
    """Raise WrongAnswer if a sequence's first token has a log-probability."""
    if value is not None:
        raise WrongAnswer("the first token has a log-probability, though nothing stands before it; expected None")


def checked_logprobs(values: Sequence[object], tokens: Sequence[object]) -> list[float]:
    """Return the tokens' log-probabilities in float32, as they are stored; raise WrongAnswer if one yields no loss."""
    logprobs = _checked(values, tokens)
    if (places := np.flatnonzero(logprobs <= _LEAST)).size:
        raise WrongAnswer(
            f"the log-probability of token {tokens[places[0]]} is {values[places[0]]}; expected a finite number of at "
            "most 0. A token of no probability is one that the teacher does not know: check that the server has the "
            "student's vocabulary and restricts no tokens"
        )
    rounded: list[float] = logprobs.astype(np.float32).tolist()
    return rounded


def top_logprobs(ids: Sequence[object], logprobs: Sequence[object], counts: Sequence[int], top_k: int) -> TopLogprobs:
    """Return the `top_k` best at each position, or all where the vocabulary has fewer.

    `ids` and `logprobs` have `counts` entries of one position after the other. Raise WrongAnswer if positions have
    different numbers of them, or one is no id or no log-probability.
    """
    num_best = {min(count, top_k) for count in counts}
    if len(num_best) > 1 or 0 in num_best:
        raise WrongAnswer(
            f"it has {min(num_best)} to {max(num_best)} most probable tokens at a position; expected {top_k} at each. "
            "Does the server cap their number?"
        )
    try:
        ids_N = np.array(ids, np.int32)
    except (TypeError, ValueError, OverflowError) as error:
        raise WrongAnswer(f"one of its most probable tokens has no id: {error}") from error
    return TopLogprobs.rounded(*best_first(ids_N, _checked(logprobs, ids), np.array(counts), num_best.pop()))


def _checked(values: Sequence[object], tokens: Sequence[object]) -> np.ndarray:
    """Return log-probabilities in float64, which may be minus infinity; raise WrongAnswer if one is none."""
    logprobs = numbers_of(values)
    if (places := np.flatnonzero(~(logprobs <= MOST_LOGPROB))).size:
        seen = f"the log-probability of token {tokens[places[0]]} is {values[places[0]]!r}"
        raise WrongAnswer(f"{seen}; expected a number of at most 0")
    return np.minimum(logprobs, 0.0)
