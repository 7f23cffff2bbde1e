"""Scores of given tokens by a teacher, as they are stored and trained on.

Dimensions: N scored tokens of a sequence, K a teacher's most probable tokens at each.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

import numpy as np

_MOST: Final = 1 << 53
_ROUNDING: Final = 1e-6
"""Mass of the others below which 1 less the mass of the best is rounding: float32 logits of a size of 30, less their
normaliser, are off by some 2e-6."""
LEAST_LOGPROB: Final = -100.0
"""Of a token that a server gives no probability (vLLM writes -9999)."""
MOST_LOGPROB: Final = 1e-3
"""Above 0 by more than rounding; a server that gives probabilities in their place has higher ones."""


@dataclass(frozen=True, slots=True, eq=False)
class TopLogprobs:
    """A teacher's most probable tokens at N positions, some that it was given among them, and the mass of all others.

    Half precision is off by at most 2^-11 of a value: of a log-probability between -1 and 0 by 0.0002, between -16 and
    -8 by 0.004. The values are rounded when they arrive, so that stored ones train to the same bits. With given
    tokens all are in single precision.
    """

    ids_NK: np.ndarray
    """int32, each id at most once; best first where none were given."""
    logprobs_NK: np.ndarray
    """float16, in nats."""
    log_tail_N: np.ndarray
    """float16, logarithm of the mass of all other tokens. Below 1e-6 the mass of the best does not tell it; it is then
    the last best token's, which the next does not exceed."""

    @classmethod
    def rounded(cls, ids_NK: np.ndarray, logprobs_NK: np.ndarray) -> Self:
        """Round exact log-probabilities."""
        tail_N = 1.0 - np.exp(logprobs_NK.astype(np.float64)).sum(axis=1)
        last_N = np.clip(logprobs_NK[:, -1], LEAST_LOGPROB, math.log(_ROUNDING))
        log_tail_N = np.where(tail_N < _ROUNDING, last_N, np.log(np.maximum(tail_N, _ROUNDING)))
        rounded_NK = np.maximum(logprobs_NK, LEAST_LOGPROB).astype(np.float16)
        return cls(ids_NK.astype(np.int32), rounded_NK, log_tail_N.astype(np.float16))

    @classmethod
    def given(cls, ids_NK: np.ndarray, logprobs_NK: np.ndarray) -> Self:
        """Return those in any order; log-probabilities may be minus infinity, for ids that stand for none."""
        tail_N = np.maximum(1.0 - np.exp(logprobs_NK.astype(np.float64)).sum(axis=1), _ROUNDING)
        bounded_NK = np.maximum(logprobs_NK, LEAST_LOGPROB).astype(np.float32)
        return cls(ids_NK.astype(np.int32), bounded_NK, np.log(tail_N).astype(np.float32))

    def best(self, count: int) -> "TopLogprobs":
        """Return the first `count` at each position; the mass of the rest goes to the others."""
        if count >= self.ids_NK.shape[1]:
            return self
        rest_N = np.exp(self.logprobs_NK[:, count:].astype(np.float64)).sum(axis=1)
        log_tail_N = np.log(np.exp(self.log_tail_N.astype(np.float64)) + rest_N)
        return TopLogprobs(self.ids_NK[:, :count], self.logprobs_NK[:, :count], log_tail_N.astype(np.float16))

    def part(self, first: int, last: int) -> "TopLogprobs":
        """Return those of the positions from `first` to before `last`."""
        return TopLogprobs(self.ids_NK[first:last], self.logprobs_NK[first:last], self.log_tail_N[first:last])


class SequenceScores(NamedTuple):
    """Scores of the N scored tokens of one sequence, in order."""

    logprobs: list[float]
    """Of each token; of a `GivenIds` of its K ids at each place, one place after the other."""
    top: TopLogprobs | None = None
    """None where only the tokens themselves were asked for."""

    def part(self, first: int, last: int) -> "SequenceScores":
        """Return those of the scored tokens from `first` to before `last`."""
        return SequenceScores(self.logprobs[first:last], None if self.top is None else self.top.part(first, last))


def best_first(
    values: np.ndarray, logprobs: np.ndarray, counts_N: np.ndarray, top_k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the best `top_k` values at each of N positions, and their log-probabilities; of equal ones the first.

    Both arrays hold `counts_N` of one position after the other. -1 and minus infinity fill up rows of fewer.
    """
    # Rows are as wide as the widest, so one of a whole vocabulary is cut first.
    ends_N, is_kept = np.cumsum(counts_N), np.ones(len(values), bool)
    for row in np.flatnonzero(counts_N > 2 * top_k):
        first = ends_N[row] - counts_N[row]
        is_kept[first + np.argsort(-logprobs[first : ends_N[row]], kind="stable")[top_k:]] = False
    counts_N = np.where(counts_N > 2 * top_k, top_k, counts_N)
    is_there = np.arange(max(top_k, counts_N.max())) < counts_N[:, None]
    values_NM, logprobs_NM = np.full(is_there.shape, -1, values.dtype), np.full(is_there.shape, -np.inf)
    values_NM[is_there], logprobs_NM[is_there] = values[is_kept], logprobs[is_kept]
    order_NK = np.argsort(-logprobs_NM, axis=1, kind="stable")[:, :top_k]
    return np.take_along_axis(values_NM, order_NK, axis=1), np.take_along_axis(logprobs_NM, order_NK, axis=1)


def numbers_of(values: Sequence[Any]) -> np.ndarray:
    """Return values of JSON in float64, NaN for those that are no numbers."""
    if not set(map(type, values)) <= {float}:
        # Whole numbers may have more digits than a float.
        values = [it if type(it) is float or (type(it) is int and abs(it) <= _MOST) else math.nan for it in values]
    return np.array(values, np.float64)
