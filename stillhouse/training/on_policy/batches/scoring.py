"""Turns sampled trajectories into scored samples; each group goes to its teacher as soon as it has finished.

Served teachers score while the student still samples. Teachers in this process are asked once sampling is over: they
would compete with the student for the device, and some are the student itself with other weights.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from stillhouse.training.on_policy.objective import Objective
from stillhouse.training.on_policy.scored import ScoredSample, TeacherView
from stillhouse.training.on_policy.teachers.router import TeacherRouter
from stillhouse.training.on_policy.teachers.teacher import ExactTeacher, ScoreRequest, Teacher, TeacherScores
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import PromptMetadata


@dataclass(slots=True)
class _Pending:
    """Requests not yet sent to a teacher."""

    teacher: Teacher
    requests: list[ScoreRequest] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    """Indices of their trajectories."""


class Scoring:
    """The scores of one batch, whose prompts are `prompt_ids` in order; `metadata` may lack any.

    `objective` says whether teachers in this process score here, or are compared with as a whole in training.
    """

    def __init__(
        self,
        teachers: TeacherRouter,
        metadata: Mapping[str, PromptMetadata],
        prompt_ids: Sequence[str],
        objective: Objective,
    ) -> None:
        self._teachers = teachers
        self._metadata = metadata
        self._order = {prompt_id: place for place, prompt_id in enumerate(prompt_ids)}
        self._objective = objective
        self._added: list[tuple[SampledTrajectory, Teacher | None, TeacherView | None]] = []
        self._pending: dict[str, _Pending] = {}
        self._sent: list[tuple[list[int], Future[list[TeacherScores]]]] = []

    def add(self, group: Sequence[SampledTrajectory]) -> None:
        """Add the finished trajectories of one prompt."""
        metadata = self._metadata.get(group[0].prompt_id)
        teacher = self._teachers.select(metadata)
        for trajectory in group:
            # A prompt that fills the context has nothing to score.
            if trajectory.num_turns == 0:
                continue
            view = self._teachers.view(trajectory, metadata)
            self._added.append((trajectory, teacher, view))
            if teacher is not None and (self._objective.is_scored_ahead or not isinstance(teacher, ExactTeacher)):
                request = ScoreRequest(trajectory.token_ids, trajectory.loss_mask, trajectory.prompt_id, view)
                pending = self._pending.setdefault(teacher.name, _Pending(teacher))
                pending.requests.append(request)
                pending.indices.append(len(self._added) - 1)
        if teacher is not None and teacher.name in self._pending and not isinstance(teacher, ExactTeacher):
            self._send(self._pending.pop(teacher.name))

    def finish(self) -> list[ScoredSample]:
        """Return the samples, prompt by prompt in the order of the batch; raises what scoring raises."""
        for pending in self._pending.values():
            self._send(pending)
        self._pending.clear()
        scores: dict[int, TeacherScores] = {}
        for indices, future in self._sent:
            scores |= dict(zip(indices, future.result(), strict=True))
        samples = [self._sample(index, scores.get(index)) for index in range(len(self._added))]
        by_prompt = sorted(range(len(samples)), key=lambda index: (self._order[samples[index].prompt_id], index))
        return [samples[index] for index in by_prompt]

    def _send(self, pending: _Pending) -> None:
        self._sent.append((pending.indices, pending.teacher.start(pending.requests)))

    def _sample(self, index: int, scores: TeacherScores | None) -> ScoredSample:
        trajectory, teacher, view = self._added[index]
        metadata = self._metadata.get(trajectory.prompt_id)
        return ScoredSample(
            token_ids=trajectory.token_ids,
            loss_mask=trajectory.loss_mask,
            prompt_id=trajectory.prompt_id,
            tag=metadata.tag if metadata else None,
            sampling_logprobs=trajectory.sampling_logprobs,
            teacher=teacher.name if teacher else None,
            kl_coef=teacher.kl_coef if teacher else 0.0,
            teacher_logprobs=None if scores is None else scores.logprobs,
            teacher_top=None if scores is None else scores.top,
            teacher_view=view,
            route=self._teachers.route(metadata),
            policy_version=trajectory.policy_version,
        )
