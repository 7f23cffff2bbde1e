"""`Method`: what a training method supplies to the trainer, which is the same for all of them.

The trainer turns batches into microbatches, divides by the token count of the whole batch, and owns
optimiser, schedule, checkpoints and logging.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

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


class Method(TokenLoss):
    """A training method: batches and a loss."""

    name: str
    """Prefix of its metrics."""
    num_steps: int
    """Optimiser steps."""
    headline: tuple[str, ...]
    """Bare names of the metrics shown as progress."""
    guarded: str | None = None
    """Bare name of the metric whose rise means that training has diverged; None watches none. The best validation is
    where it is lowest, or where the loss is if this is None."""
    validation: Sequence[Sample]
    """Samples to validate on; may be empty."""
    facts: JsonObject
    """Small facts about the method's data, for the record of the training."""

    @abstractmethod
    def batch(self, step: int) -> Batch:
        """Return the batch of `step`, from 0: a function of seed, step and weights, so that no state is saved."""
