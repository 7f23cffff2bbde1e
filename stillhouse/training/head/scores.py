"""What the student says of given target tokens, and how far it is from a teacher there.

Dimensions: N loss positions, V vocabulary.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

ScoreName = Literal["entropy", "mean_logprob", "reverse_kl"]
"""Scores that cost passes over the logits and are computed only for who wants them."""


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Scores of the target tokens under softmax(logits / temperature), one entry per loss position.

    In float32, or in float64 where the model is. A loss may be differentiated through `logprobs_N`,
    `log_normalisers_N`, `mean_logprobs_N` and `divergence_N`; the others carry no gradient.

    What compares with a teacher is over the ids that both share, at the same temperature. It is there whenever the
    method has divergence terms or wants `reverse_kl`; where a microbatch has no teacher it says that nothing differs.
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
    divergence_N: Tensor | None = None
    """The weighted sum of the method's divergence terms between the whole distributions of student and teacher."""
    reverse_kl_N: Tensor | None = None
    """KL(student || teacher) over the vocabulary, where `reverse_kl` is wanted."""
    reference_logprobs_N: Tensor | None = None
    """Log-probability of each target under the teacher; minus infinity for an id that it does not share."""
