"""What the student says of given target tokens. Dimensions: N loss positions, V vocabulary."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

ScoreName = Literal["entropy", "mean_logprob"]
"""Scores that cost passes over the logits and are computed only for who wants them."""


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Scores of the target tokens under softmax(logits / temperature), one entry per loss position.

    In float32, or in float64 where the model is. A loss may be differentiated through `logprobs_N`,
    `log_normalisers_N` and `mean_logprobs_N`; the others carry no gradient.
    """

    targets_N: Tensor
    """The target tokens' ids."""
    logprobs_N: Tensor
    """Log-probability of each target, in nats."""
    log_normalisers_N: Tensor
    """log Z, the logarithm of the sum of exp(logits / temperature) over the vocabulary."""
    is_top_N: Tensor
    """Whether no token is more probable than the target; logits in half precision may have several such tokens."""
    mean_logprobs_N: Tensor | None = None
    """Mean over the vocabulary of the log-probabilities, where `mean_logprob` is wanted."""
    entropy_N: Tensor | None = None
    """Entropy in nats of the distribution the target was scored under, where `entropy` is wanted."""
