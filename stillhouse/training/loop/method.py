"""What a training method is to the trainer: batches, a loss per token, and what it measures.

The trainer knows no method. It turns batches into microbatches, divides by the token count of the whole batch, and owns
optimiser, schedule, checkpoints and logging. Dimensions: N loss positions of a chunk of a microbatch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from stillhouse.config import Divergence
from stillhouse.training.head.reference import Reference
from stillhouse.training.head.scores import ScoreName, TokenScores
from stillhouse.types import JsonObject, Sample


@dataclass(frozen=True, slots=True)
class Batch:
    """The samples of one optimiser step and what the method measured while it made them."""

    samples: Sequence[Sample]
    metrics: dict[str, float] = field(default_factory=dict)
    """By bare name; the trainer puts the method's name before each."""
    num_sampled_tokens: int = 0
    """Tokens the student sampled for this batch."""


@dataclass(frozen=True, slots=True)
class TokenLosses:
    """The loss at each of N positions, and what to report of them. Every tensor has shape [N]."""

    losses_N: Tensor
    """What is minimised is the sum over the batch divided by the number of loss positions of the whole batch."""
    means: dict[str, Tensor] = field(default_factory=dict)
    """Reported as the mean over all loss positions of the batch."""
    ratios: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Reported as the sum of the first over the batch, divided by the sum of the second."""
    maxima: dict[str, Tensor] = field(default_factory=dict)
    """Reported as the largest value of the batch."""


class TokenLoss(Protocol):
    """The part of a method that the head needs."""

    @property
    def temperature(self) -> float:
        """Logits are divided by it."""

    @property
    def wants(self) -> frozenset[ScoreName]:
        """Scores that cost a pass over the logits and are made for methods that use them only."""

    @property
    def divergence(self) -> Sequence[Divergence]:
        """Terms of an exact divergence from the references' teachers, which the loss finds as `divergence_N` in its
        scores; none where it uses none.
        """

    def partition(self, sample: Sample) -> str:
        """What samples must have in common to share a microbatch, and so a reference."""

    def reference(self, samples: Sequence[Sample]) -> Reference | None:
        """The teacher's hidden states at all loss positions of `samples`, sample by sample; None for no teacher.

        Called once for each microbatch, without gradient and in the student's precision. A process left without work
        asks with no samples, as often as the others ask with some.
        """

    def token_values(self, sample: Sample) -> Mapping[str, Sequence[float]]:
        """What the loss needs of a sample beside its tokens: lists aligned with `token_ids`, by name."""

    def loss(self, scores: TokenScores, values: Mapping[str, Tensor]) -> TokenLosses:
        """Losses of N targets, each a function of its own scores and values alone.

        Called for a chunk of a microbatch at a time. The gradient is taken with respect to the scores.
        """


class Method(TokenLoss, Protocol):
    """Supplies batches and a loss."""

    @property
    def name(self) -> str:
        """Prefix of the method's metrics."""

    @property
    def num_steps(self) -> int:
        """Optimiser steps in all."""

    @property
    def headline(self) -> tuple[str, ...]:
        """The metrics a person watches while it runs, by bare name."""

    @property
    def facts(self) -> JsonObject:
        """What is to be known of the method's data once the training is over: small, by name."""

    @property
    def guarded(self) -> str | None:
        """The metric, by bare name, that falls as the student learns: its rise means that training has diverged, and
        the validation where it is lowest is the best. Not the loss where that may be low without merit, as that of DFT
        is for tokens of no probability. None where no metric tells; the best is then that of the lowest loss.
        """

    def batch(self, step: int) -> Batch:
        """The batch of step `step`, counted from 0.

        A function of seed, step and the student's current weights alone: nothing else has to survive a crash.
        """

    @property
    def validation(self) -> Sequence[Sample]:
        """Samples that are measured and not trained on; may be empty."""
