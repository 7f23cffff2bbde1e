"""The sequences that are scored, and what the forms of request and answer of servers have in common."""

import math
from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np

from stillhouse.inference.scoring.scores import SequenceScores, TopLogprobs
from stillhouse.types import JsonObject

_LEAST: Final = -9999.0  # written by vLLM and others for minus infinity, which JSON does not have
_ROUNDING: Final = 1e-3


class TokenSequence(Protocol):
    """A sequence of tokens of which some are scored. Both lists are aligned."""

    @property
    def token_ids(self) -> list[int]:
        """Return the tokens that the model reads."""

    @property
    def loss_mask(self) -> list[bool]:
        """Return True at the tokens that are scored, never the first."""


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


def checked_logprob(value: object, token: int) -> float:
    """Return a log-probability in float32, as it is stored; raise WrongAnswer if no loss can be computed from it."""
    number = _logprob(value, token)
    if number <= _LEAST:
        raise WrongAnswer(
            f"the log-probability of token {token} is {value}; expected a finite number of at most 0. A token of "
            "no probability is one that the teacher does not know: check that the server has the student's vocabulary "
            "and restricts no tokens"
        )
    return float(np.float32(number))


def top_logprobs(positions: Sequence[Sequence[tuple[int, object]]], top_k: int) -> TopLogprobs:
    """Return the `top_k` best of the ids and log-probabilities at each position, or all where the vocabulary has fewer;
    raise WrongAnswer if positions have different numbers of them, or one is no log-probability.
    """
    checked = [[(token, _logprob(logprob, token)) for token, logprob in pairs] for pairs in positions]
    best = [sorted(pairs, key=lambda pair: -pair[1])[:top_k] for pairs in checked]
    counts = {len(pairs) for pairs in best}
    if len(counts) > 1 or 0 in counts:
        raise WrongAnswer(
            f"it has {min(counts)} to {max(counts)} most probable tokens at a position; expected {top_k} at each. Does "
            "the server cap their number?"
        )
    return TopLogprobs.of(best)


def _logprob(value: object, token: int) -> float:
    """Return a number of at most 0, which may be minus infinity."""
    if not isinstance(value, int | float) or isinstance(value, bool) or math.isnan(value) or value > _ROUNDING:
        raise WrongAnswer(f"the log-probability of token {token} is {value!r}; expected a number of at most 0")
    return min(float(value), 0.0)
