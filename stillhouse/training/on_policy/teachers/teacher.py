"""What a teacher is to on-policy distillation, and what it is asked."""

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
    """A trajectory to be scored. Both lists are aligned; the mask is True where the student sampled, never first."""

    token_ids: list[int]
    loss_mask: list[bool]
    prompt_id: str
    view: TeacherView | None = None
    """What the teacher reads; None for `token_ids`."""

    @property
    def read(self) -> TeacherView:
        """The tokens that the teacher reads, and which of them it scores."""
        return self.view or TeacherView(self.token_ids, self.loss_mask)


class Teacher(Protocol):
    """Scores sampled tokens."""

    @property
    def name(self) -> str:
        """What its metrics are filed under."""

    @property
    def kl_coef(self) -> float:
        """Factor of its KL."""

    @property
    def max_context(self) -> int | None:
        """Most tokens it reads at once; None where that is not known."""

    def start(self, requests: Sequence[ScoreRequest]) -> Future[list[list[float]]]:
        """Begins to score; a teacher in this process has finished when this returns.

        Returns:
            For each request its log-probabilities at the sampling temperature, aligned with `token_ids`, 0.0 where the
            mask is False. Asking for the result raises what went wrong, a `StillhouseError`.
        """

    def close(self) -> None:
        """Ends what is under way and frees what it holds."""


@runtime_checkable
class ExactTeacher(Teacher, Protocol):
    """A teacher whose whole distribution is at hand."""

    def reference(self, samples: Sequence[ScoredSample]) -> "Reference":
        """Its last hidden states at the loss positions of `samples`, one after the other, and its output layer.

        Call it before the student's forward pass: a teacher that is the student itself with other weights exchanges
        them for as long as it reads.
        """


def view_of(sample: ScoredSample) -> TeacherView:
    """What the teacher of `sample` reads."""
    return sample.teacher_view or TeacherView(sample.token_ids, sample.loss_mask)


def placed(
    requests: Sequence[ScoreRequest], logprobs: Sequence[Sequence[float]], alignment: "ByteAlignment | None"
) -> list[list[float]]:
    """The answer to `requests`.

    Args:
        requests: what was asked.
        logprobs: for each of them those of the scored tokens of what the teacher read, in order.
        alignment: from the teacher's tokens to the student's; None where they are the same.

    Raises:
        ValueError: the scored tokens of what the teacher read are not those of a request.
    """
    answers = []
    for request, scored in zip(requests, logprobs, strict=True):
        if alignment is not None and request.view is not None:
            own = TeacherView(request.token_ids, request.loss_mask)
            scored = alignment.align(own, request.view, scored)
        answers.append(at_sampled_tokens(scored, request.loss_mask))
    return answers


def finished(answers: list[list[float]]) -> Future[list[list[float]]]:
    """A future that has its result."""
    future: Future[list[list[float]]] = Future()
    future.set_result(answers)
    return future
