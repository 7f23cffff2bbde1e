"""A sampled trajectory with what teachers and rewards say of it: what on-policy distillation trains on."""

from dataclasses import dataclass

from stillhouse.types import Sample


@dataclass(frozen=True, slots=True)
class TeacherView:
    """What a teacher reads where that is not what the student read, such as a prompt with a hint."""

    token_ids: list[int]
    loss_mask: list[bool]
    """True at the tokens that the student sampled: the same ones in the same order as in the sample itself."""


@dataclass(frozen=True, slots=True)
class ScoredSample(Sample):
    """A sampled trajectory, scored. Lists are aligned with `token_ids` and hold 0.0 where the mask is False.

    `advantages` is that part of the advantage which is fixed before training: the normalised reward, and the KL of
    later tokens where it counts for earlier ones. `sampling_logprobs` are always there.
    """

    teacher: str | None = None
    """Name of the teacher that scores it; None for nobody, and then it has no KL."""
    kl_coef: float = 0.0
    """Factor of its teacher's KL."""
    teacher_logprobs: list[float] | None = None
    """Of the sampled tokens; None without a teacher, or where the teacher's whole distribution is compared instead."""
    teacher_view: TeacherView | None = None
    """What the teacher reads; None for `token_ids`."""
    old_logprobs: list[float] | None = None
    """The student's own before the first update on its batch, where `Objective.needs_old_logprobs`."""
    route: str | None = None
    """What its prompt is routed by, as its KL is reported by it (`TeacherRouter.label`); None for none."""
    weight: float = 1.0
    """Factor of its losses, of which the sum over the batch is divided by the batch's number of loss positions."""
    policy_version: int = 0
    """Optimiser updates of the weights that sampled it."""

    @property
    def sampled_kl(self) -> list[float] | None:
        """Log p_student - log p_teacher of each token as it was sampled; None where no teacher gave a probability."""
        if self.teacher_logprobs is None:
            return None
        assert self.sampling_logprobs is not None
        return [
            student - teacher for student, teacher in zip(self.sampling_logprobs, self.teacher_logprobs, strict=True)
        ]
