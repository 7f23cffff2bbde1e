"""`Method`: what a training method supplies to the trainer, which is the same for all of them.

The trainer turns batches into microbatches, divides by the token count of the whole batch, and owns
optimiser, schedule, checkpoints and logging.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stillhouse.training.head.scores import TokenLoss
from stillhouse.types import JsonObject, Sample


@dataclass(frozen=True, slots=True)
class Batch:
    """The samples of one optimiser step, with metrics of how they were made."""

    samples: Sequence[Sample]
    metrics: dict[str, float] = field(default_factory=dict)
    """By bare name; the trainer adds the method's name as a prefix."""
    num_sampled_tokens: int = 0
    """Tokens the student sampled for this batch."""


class Method(TokenLoss, Protocol):
    """A training method: batches and a loss."""

    @property
    def name(self) -> str:
        """Return the prefix of the method's metrics."""

    @property
    def num_steps(self) -> int:
        """Return the number of optimiser steps."""

    @property
    def headline(self) -> tuple[str, ...]:
        """Return the bare names of the metrics shown as progress."""

    @property
    def facts(self) -> JsonObject:
        """Return small facts about the method's data, for the record of the training."""

    @property
    def guarded(self) -> str | None:
        """Return the bare name of the metric whose rise means that training has diverged; None watches none.

        The best validation is where it is lowest, or where the loss is if this is None.
        """

    def batch(self, step: int) -> Batch:
        """Return the batch of `step`, from 0: a function of seed, step and weights, so that no state is saved."""

    @property
    def validation(self) -> Sequence[Sample]:
        """Return the samples to validate on; may be empty."""
