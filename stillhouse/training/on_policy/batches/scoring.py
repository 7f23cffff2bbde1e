"""From sampled trajectories to scored samples: each group is handed to its teacher as soon as it has ended.

Teachers behind servers score while the student still samples. Those in this process are asked when all is sampled: they
would only keep the student waiting, and some are the student itself with other weights.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from stillhouse.training.on_policy.loss.objective import Objective
from stillhouse.training.on_policy.scored import ScoredSample, TeacherView
from stillhouse.training.on_policy.teachers.routing import Teachers
from stillhouse.training.on_policy.teachers.teacher import ExactTeacher, ScoreRequest, Teacher
from stillhouse.training.on_policy.trajectories import SampledTrajectory
from stillhouse.types import PromptMetadata


@dataclass(slots=True)
class _Pending:
    """What one teacher is still to be asked."""

    teacher: Teacher
    requests: list[ScoreRequest] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    """Where the trajectories stand among all that were taken."""


class Scoring:
    """The scores of one batch.

    Args:
        teachers: who scores whom.
        metadata: of the prompts, by id; may lack any.
        prompt_ids: of the batch, in order.
        objective: whether scores of sampled tokens are needed at all, or the teacher's whole distribution later on.
    """

    def __init__(
        self,
        teachers: Teachers,
        metadata: Mapping[str, PromptMetadata],
        prompt_ids: Sequence[str],
        objective: Objective,
    ) -> None:
        self._teachers = teachers
        self._metadata = metadata
        self._order = {prompt_id: place for place, prompt_id in enumerate(prompt_ids)}
        self._objective = objective
        self._taken: list[tuple[SampledTrajectory, Teacher | None, TeacherView | None]] = []
        self._pending: dict[str, _Pending] = {}
        self._asked: list[tuple[list[int], Future[list[list[float]]]]] = []

    def take(self, group: Sequence[SampledTrajectory]) -> None:
        """A prompt's trajectories, which have ended."""
        about = self._metadata.get(group[0].prompt_id)
        teacher = self._teachers.select(about)
        for trajectory in group:
            # A prompt that fills the context has nothing to score.
            if trajectory.num_turns == 0:
                continue
            view = self._teachers.view(trajectory, about)
            self._taken.append((trajectory, teacher, view))
            if teacher is not None and not self._objective.is_exact:
                request = ScoreRequest(trajectory.token_ids, trajectory.loss_mask, trajectory.prompt_id, view)
                self._ask(teacher, request)
        for pending in list(self._pending.values()):
            if not isinstance(pending.teacher, ExactTeacher):
                self._start(pending)

    def finish(self) -> list[ScoredSample]:
        """The samples, prompt by prompt in the order of the batch.

        Raises:
            StillhouseError: a teacher could not score.
        """
        for pending in list(self._pending.values()):
            self._start(pending)
        logprobs: dict[int, list[float]] = {}
        for places, future in self._asked:
            logprobs |= dict(zip(places, future.result(), strict=True))
        samples = [self._sample(place, logprobs.get(place)) for place in range(len(self._taken))]
        by_prompt = sorted(range(len(samples)), key=lambda place: (self._order[samples[place].prompt_id], place))
        return [samples[place] for place in by_prompt]

    def _ask(self, teacher: Teacher, request: ScoreRequest) -> None:
        pending = self._pending.setdefault(teacher.name, _Pending(teacher))
        pending.requests.append(request)
        pending.places.append(len(self._taken) - 1)

    def _start(self, pending: _Pending) -> None:
        if pending.requests:
            self._asked.append((pending.places, pending.teacher.start(pending.requests)))
        self._pending[pending.teacher.name] = _Pending(pending.teacher)

    def _sample(self, place: int, teacher_logprobs: list[float] | None) -> ScoredSample:
        trajectory, teacher, view = self._taken[place]
        about = self._metadata.get(trajectory.prompt_id)
        return ScoredSample(
            token_ids=trajectory.token_ids,
            loss_mask=trajectory.loss_mask,
            prompt_id=trajectory.prompt_id,
            tag=about.tag if about else None,
            sampling_logprobs=trajectory.sampling_logprobs,
            teacher=teacher.name if teacher else None,
            kl_coef=teacher.kl_coef if teacher else 0.0,
            teacher_logprobs=teacher_logprobs,
            teacher_view=view,
            route=self._teachers.label(about),
            policy_version=trajectory.policy_version,
        )
