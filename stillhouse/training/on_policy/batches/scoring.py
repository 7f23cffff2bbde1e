"""Turns sampled trajectories into scored samples; each group goes to its teacher as soon as it has finished.

Served teachers score while the student still samples. Teachers in this process are asked once sampling is over: they
would compete with the student for the device, and some are the student itself with other weights.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace

from stillhouse.inference.scoring.scores import SequenceScores
from stillhouse.training.on_policy.objective import Objective
from stillhouse.training.on_policy.scored import ScoredSample, at_sampled_tokens
from stillhouse.training.on_policy.teachers.router import TeacherRouter
from stillhouse.training.on_policy.teachers.teacher import ExactTeacher
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import PromptMetadata


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
        self._samples: list[ScoredSample] = []
        self._pending: dict[str, list[int]] = {}
        """Indices of the samples for which a teacher has still to be asked, by its name."""
        self._asked: list[tuple[list[int], Future[list[SequenceScores]]]] = []

    def add(self, group: Sequence[SampledTrajectory]) -> None:
        """Add the finished trajectories of one prompt."""
        metadata = self._metadata.get(group[0].prompt_id)
        teacher = self._teachers.select(metadata)
        for trajectory in group:
            # A prompt that fills the context has nothing to score.
            if trajectory.num_turns == 0:
                continue
            if teacher is not None and (self._objective.is_scored_ahead or not isinstance(teacher, ExactTeacher)):
                self._pending.setdefault(teacher.name, []).append(len(self._samples))
            sample = ScoredSample(
                token_ids=trajectory.token_ids,
                loss_mask=trajectory.loss_mask,
                prompt_id=trajectory.prompt_id,
                tag=metadata.tag if metadata else None,
                sampling_logprobs=trajectory.sampling_logprobs,
                teacher=teacher.name if teacher else None,
                kl_coef=teacher.kl_coef if teacher else 0.0,
                teacher_view=self._teachers.view(trajectory, metadata),
                route=self._teachers.route(metadata),
                policy_version=trajectory.policy_version,
            )
            self._samples.append(sample)
        if teacher is not None and not isinstance(teacher, ExactTeacher):
            self._ask(teacher.name)

    def finish(self) -> list[ScoredSample]:
        """Return the samples, prompt by prompt in the order of the batch; raises what scoring raises."""
        for name in list(self._pending):
            self._ask(name)
        for indices, future in self._asked:
            for index, (logprobs, top) in zip(indices, future.result(), strict=True):
                sample = self._samples[index]
                placed = at_sampled_tokens(logprobs, sample.loss_mask)
                self._samples[index] = replace(sample, teacher_logprobs=placed, teacher_top=top)
        return sorted(self._samples, key=lambda sample: self._order[sample.prompt_id])

    def _ask(self, name: str) -> None:
        indices = self._pending.pop(name, [])
        if indices:
            samples = [self._samples[index] for index in indices]
            self._asked.append((indices, self._teachers.by_name[name].start(samples)))
