"""`Teacher`: scores the tokens that the student sampled."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from stillhouse.inference.scoring.scores import SequenceScores, TopLogprobs
from stillhouse.training.on_policy.masks import at_sampled_tokens
from stillhouse.training.on_policy.scored import ScoredSample, TeacherView

if TYPE_CHECKING:
    from stillhouse.training.head.scores import Reference


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """A trajectory to score. The lists are aligned; the mask is True at sampled tokens, never at the first token."""

    token_ids: list[int]
    loss_mask: list[bool]
    prompt_id: str
    view: TeacherView | None = None
    """The teacher's input; None for `token_ids`."""

    @property
    def read(self) -> TeacherView:
        """Return the teacher's input tokens and which of them it scores."""
        return self.view or TeacherView(self.token_ids, self.loss_mask)


class TeacherScores(NamedTuple):
    """A teacher's scores of a request."""

    logprobs: list[float]
    """At the sampling temperature, aligned with `token_ids`; 0.0 where the mask is False."""
    top: TopLogprobs | None = None
    """At the sampled tokens, in order; None where they are not asked for."""


class Alignment(Protocol):
    """Makes what a teacher says of its own tokens what it says of the student's."""

    def scores(self, request: ScoreRequest, scores: SequenceScores) -> SequenceScores:
        """Return scores of the sampled tokens of `request`, in order, from scores of the teacher's tokens."""


class Teacher(Protocol):
    """Scores sampled tokens."""

    @property
    def name(self) -> str:
        """Return its part of the names of its metrics."""

    @property
    def kl_coef(self) -> float:
        """Return the factor of its KL."""

    @property
    def max_context(self) -> int | None:
        """Return the longest input in tokens; None if unknown."""

    def start(self, requests: Sequence[ScoreRequest]) -> Future[list[TeacherScores]]:
        """Start to score; a teacher in this process has finished when this returns.

        Returns:
            The scores of each request. `result()` raises a `StillhouseError` if scoring failed.
        """

    def close(self) -> None:
        """Wait for requests in progress and free resources."""


@runtime_checkable
class ExactTeacher(Teacher, Protocol):
    """A teacher that gives its full distribution."""

    def reference(self, samples: Sequence[ScoredSample]) -> "Reference":
        """Return last hidden states at the loss positions of `samples`, concatenated, and the output layer.

        Call it before the student's forward pass: a `SelfTeacher` swaps the student's weights while it computes.
        """


def view_of(sample: ScoredSample) -> TeacherView:
    """Return the input of the sample's teacher."""
    return sample.teacher_view or TeacherView(sample.token_ids, sample.loss_mask)


def placed(
    requests: Sequence[ScoreRequest], scores: Sequence[SequenceScores], alignment: Alignment | None
) -> list[TeacherScores]:
    """Return scores aligned with the token ids of their requests, from scores of the teacher's tokens.

    `alignment` is None where the teacher's tokens are the student's.
    """
    answers = []
    for request, scored in zip(requests, scores, strict=True):
        logprobs, top = scored if alignment is None else alignment.scores(request, scored)
        answers.append(TeacherScores(at_sampled_tokens(logprobs, request.loss_mask), top))
    return answers
