"""The exchange between head and method: scores of the target tokens, and the losses made of them.

Dimensions: N loss positions, R hidden size of the teacher, V vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from stillhouse.config import Divergence
from stillhouse.inference.scoring.scores import SequenceScores
from stillhouse.serving.score import UNSCALED, LogitScaling
from stillhouse.types import Sample


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Scores of the target tokens under softmax(logits / temperature), one entry per loss position.

    In float32, or in float64 where the model is. A loss may be differentiated through `logprobs_N` and
    `divergence_N`; the others carry no gradient.

    Comparisons with a teacher are over the ids that both share, both at `divergence_temperature`; with a `TopReference`
    over its ids and all others as one. They are present whenever the method has divergence terms; a microbatch without
    a teacher counts as one without difference.
    """

    targets_N: Tensor
    """The target tokens' ids."""
    logprobs_N: Tensor
    """Log-probability of each target, in nats."""
    log_normalisers_N: Tensor
    """log Z, the logarithm of the sum of exp(logits / temperature) over the vocabulary."""
    is_top_N: Tensor
    """True if no token is more probable than the target; several tokens may be equally probable."""
    entropy_N: Tensor | None = None
    """Entropy in nats of the distribution the target was scored under, where the method wants it: it costs a further
    pass over the logits."""
    divergence_N: Tensor | None = None
    """The weighted sum of the method's divergence terms between the whole distributions of student and teacher."""
    reference_logprobs_N: Tensor | None = None
    """Log-probability of each target under the teacher; minus infinity for an id that it does not share."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A teacher at the loss positions of a microbatch: its last hidden states and its output layer."""

    hidden_NR: Tensor
    """The teacher's last hidden states at the positions that predict the targets, in their order; without gradient."""
    head: nn.Linear
    """Its output layer, on any device: the shared part is copied to the student's for each microbatch."""
    vocabulary: int
    """Ids below it mean the same to student and teacher, which are compared over these alone, renormalised. This leaves
    out rows of an embedding beyond the tokenizer's vocabulary."""
    scaling: LogitScaling = UNSCALED
    """Scaling of the teacher's logits."""
    exchanged: tuple[int, int] | None = None
    """Two shared ids, each of which means to the student what the other means to the teacher."""


@dataclass(frozen=True, slots=True)
class TopReference:
    """A teacher at the loss positions of a microbatch: its K most probable tokens at each, as a server gives them."""

    ids_NK: Tensor
    """int64, best first, each id at most once."""
    logprobs_NK: Tensor
    """In nats, at the temperature of the method."""
    log_tail_N: Tensor
    """Logarithm of the mass of all other tokens."""
    target_logprobs_N: Tensor
    """Log-probability of each target."""

    @classmethod
    def of(cls, scores: Sequence[SequenceScores]) -> Self:
        """Return the reference of scores that have their most probable tokens, sequence by sequence."""
        tops = [top for _, top in scores if top is not None]
        return cls(
            ids_NK=torch.from_numpy(np.concatenate([top.ids_NK for top in tops])).long(),
            logprobs_NK=torch.from_numpy(np.concatenate([top.logprobs_NK for top in tops])),
            log_tail_N=torch.from_numpy(np.concatenate([top.log_tail_N for top in tops])),
            target_logprobs_N=torch.tensor([value for logprobs, _ in scores for value in logprobs]),
        )


@dataclass(frozen=True, slots=True)
class TokenLosses:
    """The loss at each of N positions, and metrics of them. Every tensor has shape [N]."""

    losses_N: Tensor
    """The sum over the batch divided by its number of loss positions is minimised."""
    means: dict[str, Tensor] = field(default_factory=dict)
    """Reported as the mean over all loss positions of the batch."""
    ratios: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Reported as the sum of the first over the batch, divided by the sum of the second."""
    maxima: dict[str, Tensor] = field(default_factory=dict)
    """Reported as the largest value of the batch."""


class TokenLoss(ABC):
    """The part of a method that the head needs."""

    temperature: float
    """Divides the logits."""
    divergence_temperature: float
    """Divides the logits of student and teacher where they are compared."""
    uses_dropout = False
    """Dropout in training. Off where the student's own probabilities are compared with others, a teacher's or those it
    was sampled with: dropout would compare another model than the one that samples."""
    wants_entropy = False
    """Whether the loss uses the entropy of the scores."""
    divergence: Sequence[Divergence] = ()
    """Terms of the exact divergence that the loss gets as `scores.divergence_N`."""

    def partition(self, sample: Sample) -> str:
        """Return a key that samples must have in common to share a microbatch, and so a reference."""
        return ""

    @abstractmethod
    def reference(self, samples: Sequence[Sample]) -> Reference | TopReference | None:
        """Return the teacher at all loss positions of `samples`, sample by sample; None for no teacher.

        Called once for each microbatch, without gradient and in the student's precision. A process left without work
        asks with no samples, as often as the others ask with some.
        """

    def token_values(self, sample: Sample) -> Mapping[str, Sequence[float] | np.ndarray]:
        """Return further inputs of the loss, aligned with `token_ids`, by name."""
        return {}

    @abstractmethod
    def loss(self, scores: TokenScores, values: Mapping[str, Tensor]) -> TokenLosses:
        """Return losses of N targets, each a function of its own scores and values alone.

        Called for a chunk of a microbatch at a time. The gradient is taken with respect to the scores.
        """
