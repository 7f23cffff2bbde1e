"""`Teacher`: scores the tokens that the student sampled."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from stillhouse.training.on_policy.masks import at_sampled_tokens
from stillhouse.training.on_policy.scored import ScoredSample, TeacherView

if TYPE_CHECKING:
    from stillhouse.training.head.scores import Reference
    from stillhouse.training.on_policy.teachers.alignment import ByteAlignment


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
        """The teacher's input tokens and which of them it scores."""
        return self.view or TeacherView(self.token_ids, self.loss_mask)


class Teacher(Protocol):
    """Scores sampled tokens."""

    @property
    def name(self) -> str:
        """Part of the names of its metrics."""

    @property
    def kl_coef(self) -> float:
        """Factor of its KL."""

    @property
    def max_context(self) -> int | None:
        """Longest input in tokens; None if unknown."""

    def start(self, requests: Sequence[ScoreRequest]) -> Future[list[list[float]]]:
        """Starts to score; a teacher in this process has finished when this returns.

        Returns:
            For each request its log-probabilities at the sampling temperature, aligned with `token_ids`, 0.0 where the
            mask is False. `result()` raises a `StillhouseError` if scoring failed.
        """

    def close(self) -> None:
        """Waits for requests in progress and frees resources."""


@runtime_checkable
class ExactTeacher(Teacher, Protocol):
    """A teacher that gives its full distribution."""

    def reference(self, samples: Sequence[ScoredSample]) -> "Reference":
        """Last hidden states at the loss positions of `samples`, concatenated, and the output layer.

        Call it before the student's forward pass: a `SelfTeacher` swaps the student's weights while it computes.
        """


def view_of(sample: ScoredSample) -> TeacherView:
    """The input of the sample's teacher."""
    return sample.teacher_view or TeacherView(sample.token_ids, sample.loss_mask)


def placed(
    requests: Sequence[ScoreRequest], logprobs: Sequence[Sequence[float]], alignment: "ByteAlignment | None"
) -> list[list[float]]:
    """Log-probabilities of scored tokens, aligned with the token ids of their requests.

    Args:
        requests: the requests.
        logprobs: for each request those of the tokens that the teacher scored, in order.
        alignment: from the teacher's tokens to the student's; None if they share a vocabulary.

    Raises:
        ValueError: a request has another number of sampled tokens.
    """
    answers = []
    for request, scored in zip(requests, logprobs, strict=True):
        if alignment is not None and request.view is not None:
            student = TeacherView(request.token_ids, request.loss_mask)
            scored = alignment.align(student, request.view, scored)
        answers.append(at_sampled_tokens(scored, request.loss_mask))
    return answers


def finished(answers: list[list[float]]) -> Future[list[list[float]]]:
    """A future that has its result."""
    future: Future[list[list[float]]] = Future()
    future.set_result(answers)
    return future
