"""`ScoredSample`: a sampled trajectory with the scores of teachers and rewards, and its completions."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress, groupby

from stillhouse.inference.scoring.api import TokenSequence
from stillhouse.inference.scoring.scores import SequenceScores, TopLogprobs
from stillhouse.types import Sample


@dataclass(frozen=True, slots=True)
class TeacherView:
    """A teacher's input where it differs from the student's, such as a prompt with a hint."""

    token_ids: list[int]
    loss_mask: list[bool]
    """True at the sampled tokens, which are those of the sample in the same order."""


@dataclass(frozen=True, slots=True)
class ScoreRequest(Sample):
    """A trajectory for a teacher to score."""

    teacher_view: TeacherView | None = None
    """The teacher's input; None for `token_ids`."""

    @property
    def read(self) -> TeacherView:
        """Return the teacher's input tokens and which of them it scores."""
        return self.teacher_view or TeacherView(self.token_ids, self.loss_mask)


@dataclass(frozen=True, slots=True)
class ScoredSample(ScoreRequest):
    """A sampled trajectory, scored. Lists are aligned with `token_ids` and hold 0.0 where the mask is False.

    `advantages` holds the part of the advantage that is fixed before training: the normalised reward.
    `sampling_logprobs` is always set.
    """

    teacher: str | None = None
    """Name of its teacher; None if it has none, and no KL."""
    kl_coef: float = 0.0
    """Factor of its teacher's KL."""
    teacher_logprobs: list[float] | None = None
    """Of the sampled tokens; None without a teacher, or if the full distribution of a local one is compared instead."""
    teacher_top: TopLogprobs | None = None
    """A teacher's most probable tokens at the positions of the mask, where a server's distribution is compared."""
    old_logprobs: list[float] | None = None
    """The student's before the first update on its batch, if `Objective.needs_old_logprobs`."""
    route: str | None = None
    """Label of its prompt's route, by which the KL is reported (`TeacherRouter.label`); None for none."""
    weight: float = 1.0
    """Factor of its losses; their sum over the batch is divided by the batch's number of loss positions."""
    policy_version: int = 0
    """Optimiser updates before the weights that sampled it."""

    @property
    def teacher_scores(self) -> SequenceScores:
        """Return the teacher's scores of the tokens of the mask."""
        return SequenceScores(list(compress(self.teacher_logprobs or (), self.loss_mask)), self.teacher_top)

    @property
    def sampled_kl(self) -> list[float] | None:
        """Return log p_student - log p_teacher of each token under the sampling weights; None without a teacher."""
        if self.teacher_logprobs is None:
            return None
        assert self.sampling_logprobs is not None
        return [
            student - teacher for student, teacher in zip(self.sampling_logprobs, self.teacher_logprobs, strict=True)
        ]


def sampled_runs(tokens: TokenSequence) -> list[list[int]]:
    """Return the token ids of each completion, the maximal runs of sampled tokens."""
    return _runs(tokens, is_sampled=True)


def unsampled_runs(tokens: TokenSequence) -> list[list[int]]:
    """Return the token ids of the prompt, and of what the model reads before each further completion."""
    return _runs(tokens, is_sampled=False)


def at_sampled_tokens(values: Sequence[float], loss_mask: Sequence[bool]) -> list[float]:
    """Return the values at the positions of the sampled tokens, 0.0 elsewhere; raise ValueError unless one for each."""
    if len(values) != sum(loss_mask):
        raise ValueError(f"there are {len(values)} values for {sum(loss_mask)} sampled tokens; expected one for each")
    remaining = iter(values)
    return [next(remaining) if is_sampled else 0.0 for is_sampled in loss_mask]


def _runs(tokens: TokenSequence, *, is_sampled: bool) -> list[list[int]]:
    pairs = zip(tokens.token_ids, tokens.loss_mask, strict=True)
    runs = groupby(pairs, key=lambda pair: pair[1])
    return [[token for token, _ in run] for sampled, run in runs if sampled == is_sampled]
