"""`Teacher`: scores the tokens that the student sampled."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from stillhouse.inference.scoring.scores import SequenceScores
from stillhouse.types import Sample

if TYPE_CHECKING:
    from stillhouse.training.head.scores import Reference


class Alignment(Protocol):
    """Makes what a teacher says of its own tokens what it says of the student's."""

    def scores(self, request: Sample, scores: SequenceScores) -> SequenceScores:
        """Return scores of the sampled tokens of `request`, in order, from scores of the teacher's tokens."""


class Teacher(Protocol):
    """Scores sampled tokens."""

    name: str
    """Its part of the names of its metrics."""
    kl_coef: float
    """Factor of its KL."""
    max_context: int | None
    """Longest input in tokens; None if unknown."""

    def start(self, requests: Sequence[Sample]) -> Future[list[SequenceScores]]:
        """Start to score each request's sampled tokens; a teacher in this process has finished when this returns.

        `result()` raises a `StillhouseError` if scoring failed.
        """

    def close(self) -> None:
        """Wait for requests in progress and free resources."""


@dataclass(slots=True)
class AskedByFirst:
    """A teacher on a server, in the processes that leave it to the first of them to ask; see `Teacher`."""

    name: str
    kl_coef: float
    max_context: int | None = None

    def start(self, requests: Sequence[Sample]) -> Future[list[SequenceScores]]:
        raise RuntimeError(f"teacher {self.name!r} is asked by the first process alone")

    def close(self) -> None:
        """See `Teacher`."""


@runtime_checkable
class ExactTeacher(Teacher, Protocol):
    """A teacher that gives its full distribution."""

    def reference(self, samples: Sequence[Sample]) -> "Reference":
        """Return last hidden states at the loss positions of `samples`, concatenated, and the output layer.

        Call it before the student's forward pass: a `SelfTeacher` swaps the student's weights while it computes.
        """


def aligned(
    requests: Sequence[Sample], scores: list[SequenceScores], alignment: Alignment | None
) -> list[SequenceScores]:
    """Return scores of the student's tokens; `alignment` is None where the teacher's tokens are the student's."""
    return scores if alignment is None else [alignment.scores(*pair) for pair in zip(requests, scores, strict=True)]
