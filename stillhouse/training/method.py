"""What a training method is to the trainer: batches, a loss per token, and what it measures.

The trainer knows no method. It turns batches into microbatches, divides by the token count of the whole batch, and owns
optimiser, schedule, checkpoints and logging. Dimensions: N loss positions of a microbatch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from stillhouse.training.batching.microbatches import Microbatch
from stillhouse.training.head.scores import Predictions
from stillhouse.types import Sample


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
    """The loss at each position of a microbatch, and what to report of them. Every tensor has shape [N]."""

    losses_N: Tensor
    """What is minimised is the sum over the batch divided by the number of loss positions of the whole batch."""
    means: dict[str, Tensor] = field(default_factory=dict)
    """Reported as the mean over all loss positions of the batch."""
    ratios: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Reported as the sum of the first over the sum of the second, each over all loss positions of the batch."""
    maxima: dict[str, Tensor] = field(default_factory=dict)
    """Reported as the largest value of the batch."""


class Method(Protocol):
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

    def batch(self, step: int) -> Batch:
        """The batch of step `step`, counted from 0.

        A function of seed, step and the student's current weights alone: nothing else has to survive a crash.
        """

    def loss(self, predictions: Predictions, microbatch: Microbatch) -> TokenLosses:
        """Losses of a microbatch, differentiable through `predictions`."""

    def validate(self) -> dict[str, float]:
        """Measurements of the current weights on data not trained on, by bare name; empty when there are none."""
