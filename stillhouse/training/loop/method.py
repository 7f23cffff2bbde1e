"""What a training method is to the trainer: batches, a loss per token, and what it measures.

The trainer knows no method. It turns batches into microbatches, divides by the token count of the whole batch, and owns
optimiser, schedule, checkpoints and logging. Dimensions: N loss positions of a chunk of a microbatch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stillhouse.training.head.scores import TokenLoss
from stillhouse.types import JsonObject, Sample


@dataclass(frozen=True, slots=True)
class Batch:
    """The samples of one optimiser step and what the method measured while it made them."""

    samples: Sequence[Sample]
    metrics: dict[str, float] = field(default_factory=dict)
    """By bare name; the trainer puts the method's name before each."""
    num_sampled_tokens: int = 0
    """Tokens the student sampled for this batch."""


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
