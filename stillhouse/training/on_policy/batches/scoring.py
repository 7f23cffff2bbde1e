"""What teachers say of a batch: each group goes to its teacher as soon as it has finished.

Served teachers score while the student still samples. Teachers in this process are asked once sampling is over: they
would compete with the student for the device, and some are the student itself with other weights. Of several processes
the first asks served teachers, and each scores its share by those in the processes.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future

import numpy as np

from stillhouse.inference.scoring.scores import SequenceScores
from stillhouse.training.on_policy.table import RolloutTable
from stillhouse.training.on_policy.teachers.router import TeacherRouter
from stillhouse.training.on_policy.teachers.teacher import ExactTeacher, Teacher
from stillhouse.training.ranks import Ranks
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import Prompt, PromptMetadata, Sample


class Scoring:
    """The scores of one batch; `metadata`, by prompt id, may lack any.

    Teachers in this process score here if `is_scored_ahead`, or are compared with as a whole in training.
    """

    def __init__(
        self, teachers: TeacherRouter, metadata: Mapping[str, PromptMetadata], ranks: Ranks, *, is_scored_ahead: bool
    ) -> None:
        self._teachers = teachers
        self._metadata = metadata
        self._ranks = ranks
        self._is_scored_ahead = is_scored_ahead
        self._samples: dict[str, Sample] = {}
        """By the key of the rollout, as all else is here."""
        self._asked: list[tuple[list[str], Future[list[SequenceScores]]]] = []

    def add(self, group: Sequence[SampledTrajectory]) -> None:
        """Add the finished trajectories of one prompt."""
        metadata = self._metadata.get(group[0].prompt_id)
        teacher = self._teachers.select(metadata)
        # A prompt that fills the context has nothing to score.
        keys = [one.rollout_key for one in group if one.num_turns > 0]
        for one in group:
            if one.num_turns > 0:
                view = self._teachers.view(one, metadata)
                self._samples[one.rollout_key] = Sample(
                    one.token_ids, one.loss_mask, one.prompt_id, teacher_view=view, best_ids_NK=one.best_ids_NK
                )
        if keys and teacher is not None and not isinstance(teacher, ExactTeacher) and self._ranks.is_first:
            self._asked.append((keys, teacher.start([self._samples[key] for key in keys])))

    def join(self, other: "Scoring") -> None:
        """Take over what was added elsewhere, and asked of served teachers."""
        self._samples |= other._samples
        self._asked += other._asked

    def table(
        self, index: int, prompts: Sequence[Prompt], trajectories: Sequence[SampledTrajectory], num_parts: int
    ) -> RolloutTable:
        """Return batch `index` without credit: the trajectories with a completion, in order, whose groups were added.

        Collective; the others than the first lack the scores of served teachers. Raises what scoring raises.
        """
        local = self._scored_here(trajectories)
        scores = {key: found for keys, future in self._asked for key, found in zip(keys, future.result(), strict=True)}
        scores |= local
        size = len(prompts) // num_parts
        part_of = {prompt.id: number // size for number, prompt in enumerate(prompts)}
        kept = [one for one in trajectories if one.rollout_key in self._samples]
        metadata = [self._metadata.get(one.prompt_id) for one in kept]
        teachers = [self._teachers.select(entry) for entry in metadata]
        answers = [scores.get(one.rollout_key) for one in kept]
        table = RolloutTable(
            index,
            num_parts,
            lengths=np.array([len(one.token_ids) for one in kept], np.int64),
            token_ids=_joined([one.token_ids for one in kept], np.int32),
            loss_mask=_joined([one.loss_mask for one in kept], np.bool_),
            sampling_logprobs=_joined([one.sampling_logprobs for one in kept], np.float64),
            policy_version=_joined([one.policy_versions for one in kept], np.int32),
            teacher_logprobs=np.empty(0),
            prompt_id=[one.prompt_id for one in kept],
            tag=[None if entry is None else entry.tag for entry in metadata],
            teacher=[None if teacher is None else teacher.name for teacher in teachers],
            kl_coef=np.array([0.0 if teacher is None else teacher.kl_coef for teacher in teachers]),
            route=[self._teachers.route(entry) for entry in metadata],
            part=np.array([part_of[one.prompt_id] for one in kept], np.int64),
            teacher_view=[self._samples[one.rollout_key].teacher_view for one in kept],
            teacher_top=[None if answer is None else answer.top for answer in answers],
            weight=np.ones(len(kept)),
        )
        known = {number: answer.logprobs for number, answer in enumerate(answers) if answer is not None}
        table.teacher_logprobs = table.placed(known)
        return table

    def _scored_here(self, trajectories: Sequence[SampledTrajectory]) -> dict[str, SequenceScores]:
        """Return the scores of teachers in the processes, to which trajectories of like length are dealt in turn."""
        scores: dict[str, SequenceScores] = {}
        longest_first = sorted(trajectories, key=lambda one: -len(one.token_ids))
        for teacher in self._teachers.by_name.values():
            if not self._is_scored_ahead or not isinstance(teacher, ExactTeacher):
                continue
            keys = [one.rollout_key for one in longest_first if self._reads(teacher, one)]
            mine = keys[self._ranks.rank :: self._ranks.size]
            answers = teacher.start([self._samples[key] for key in mine]).result()
            for part in self._ranks.gather(dict(zip(mine, answers, strict=True))):
                scores |= part
        return scores

    def _reads(self, teacher: Teacher, trajectory: SampledTrajectory) -> bool:
        is_routed = self._teachers.select(self._metadata.get(trajectory.prompt_id)) is teacher
        return is_routed and trajectory.rollout_key in self._samples


def _joined(lists: Sequence[Sequence[float] | np.ndarray], dtype: type[np.generic]) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype), *(np.array(values, dtype) for values in lists)])
