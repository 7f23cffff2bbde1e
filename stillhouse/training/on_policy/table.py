"""`RolloutTable`: a batch of rollouts as columns.

Dimensions: S trajectories, each with a completion; T tokens of all of them, one trajectory after the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stillhouse.inference.scoring.scores import SequenceScores, TopLogprobs
from stillhouse.types import Sample


@dataclass(frozen=True, slots=True, eq=False)
class Row(Sample):
    """A trajectory as the trainer's sample, whose `token_ids` and `loss_mask` are parts of the table's columns."""

    number: int = field(kw_only=True)
    """Its place among the trajectories."""
    tokens: slice = field(kw_only=True)
    """The place of its tokens among all."""


@dataclass(slots=True, eq=False)
class RolloutTable:
    """The trajectories of some prompts, those of a prompt one after the other, sampled, scored and credited.

    Columns of tokens are [T] and hold 0.0 where nothing was sampled; those of trajectories are [S].
    """

    index: int
    """Place of the batch among those of the training, from 0."""
    num_parts: int
    """Substeps that the batch serves."""
    lengths: np.ndarray
    """Tokens of each trajectory."""
    token_ids: np.ndarray
    loss_mask: np.ndarray
    """True exactly where the student sampled."""
    sampling_logprobs: np.ndarray
    """float64, as are all others: what is computed of them is exact, and so is the file."""
    policy_version: np.ndarray
    """Optimiser updates before the weights that sampled; int32."""
    teacher_logprobs: np.ndarray
    """NaN in trajectories without a teacher, or whose local teacher is compared by its whole distribution."""
    prompt_id: list[str]
    tag: list[str | None]
    teacher: list[str | None]
    """Name of the teacher; None where there is none, and no KL."""
    kl_coef: np.ndarray
    """Factor of that teacher's KL."""
    route: list[str | None]
    """Label by which the KL is reported (`TeacherRouter.route`); None for none."""
    part: np.ndarray
    """The substep that trains on it."""
    teacher_view: list[Sample | None]
    """What the teacher reads in place of the trajectory."""
    teacher_top: list[TopLogprobs | None]
    """The teacher's most probable tokens where the student sampled, where they are compared."""
    weight: np.ndarray
    """Factor of the losses; their sum over a part is divided by the part's number of sampled tokens."""
    advantages: np.ndarray | None = None
    """Fixed before training: the normalised reward; None where rewards are not learnt from."""
    old_logprobs: np.ndarray | None = None
    """The student's before the first update on the batch, once `Objective.needs_old_logprobs` had them computed."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Of the batch, without prefix."""
    untaken: list[int] = field(default_factory=list)
    """Places of prompts in the stream of groups that no batch has taken so far, the last one and all after it."""
    starts: np.ndarray = field(init=False)
    """[S + 1] Place of each trajectory's first token, and T."""

    def __post_init__(self) -> None:
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int64)

    def __len__(self) -> int:
        return len(self.prompt_id)

    @property
    def counts(self) -> np.ndarray:
        """Return the number of tokens that the student sampled in each trajectory."""
        sums = np.concatenate([[0], np.cumsum(self.loss_mask)])
        return sums[self.starts[1:]] - sums[self.starts[:-1]]

    @property
    def sampled_kl(self) -> np.ndarray:
        """Return log p_student - log p_teacher [T] under the weights that sampled; NaN where no teacher scored."""
        return self.sampling_logprobs - self.teacher_logprobs

    def spread(self, values: np.ndarray) -> np.ndarray:
        """Return a column of trajectories as one of tokens."""
        return np.repeat(values, self.lengths)

    def rows(self, part: int | None = None) -> list[Row]:
        """Return the trajectories of one substep, or of all."""
        numbers = range(len(self)) if part is None else np.flatnonzero(self.part == part).tolist()
        return [self._row(number) for number in numbers]

    def teacher_scores(self, number: int) -> SequenceScores:
        """Return what the teacher found of the sampled tokens of a trajectory."""
        tokens = slice(self.starts[number], self.starts[number + 1])
        logprobs = self.teacher_logprobs[tokens][self.loss_mask[tokens]].tolist()
        return SequenceScores(logprobs, self.teacher_top[number])

    def placed(self, values: Mapping[int, Sequence[float]]) -> np.ndarray:
        """Return a column [T] of values for the sampled tokens, in order, by trajectory; NaN in the others.

        Raises ValueError unless there is one for each.
        """
        column, counts = np.full(len(self.token_ids), np.nan), self.counts
        for number, given in values.items():
            if len(given) != counts[number]:
                raise ValueError(
                    f"there are {len(given)} values for {counts[number]} sampled tokens; expected one for each"
                )
            tokens = slice(self.starts[number], self.starts[number + 1])
            column[tokens] = 0.0
            column[tokens][self.loss_mask[tokens]] = given
        return column

    def _row(self, number: int) -> Row:
        tokens = slice(int(self.starts[number]), int(self.starts[number + 1]))
        return Row(
            self.token_ids[tokens],  # type: ignore[arg-type]  # to the trainer arrays are as good as lists
            self.loss_mask[tokens],  # type: ignore[arg-type]
            self.prompt_id[number],
            self.tag[number],
            self.teacher_view[number],
            number=number,
            tokens=tokens,
        )
