"""On-policy distillation: the student samples, teachers and rewards score, the student is updated.

A batch of rollouts has `prompts_per_step * group_size` trajectories and serves `num_substeps * num_passes` optimiser
steps. `algorithms/` defines the loss, `batches/` makes the batches.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from stillhouse.config import OnPolicyConfig
from stillhouse.training.head.scores import Reference, TokenLosses, TokenScores, TopReference
from stillhouse.training.loop.checkpoint_folder import saved_steps
from stillhouse.training.loop.method import Batch, Method
from stillhouse.training.model.student import Student
from stillhouse.training.on_policy.batches.batch import RolloutBatch
from stillhouse.training.on_policy.batches.queue import BatchQueue
from stillhouse.training.on_policy.monitoring.activity import Activity
from stillhouse.training.on_policy.monitoring.metrics import staleness
from stillhouse.training.on_policy.objective import Objective
from stillhouse.training.on_policy.rewards import RewardScorer
from stillhouse.training.on_policy.scored import ScoredSample, at_sampled_tokens
from stillhouse.training.on_policy.teachers.local import LocalTeacher
from stillhouse.training.on_policy.teachers.packed import ScoringSettings
from stillhouse.training.on_policy.teachers.router import TeacherRouter
from stillhouse.training.on_policy.teachers.self_teacher import SelfTeacher
from stillhouse.training.on_policy.teachers.teacher import ExactTeacher
from stillhouse.types import JsonObject, Sample


@dataclass(eq=False)
class OnPolicy(Method):
    """The method `on_policy`."""

    name = "on_policy"
    headline = ("teacher_kl", "reward", "mean_completion_tokens")
    validation = ()
    """Empty: each batch is itself a measurement on fresh samples."""

    student: Student
    objective: Objective
    queue: BatchQueue
    teachers: TeacherRouter
    rewards: RewardScorer | None
    """Of the batches that are made here; None where they were recorded."""
    config: OnPolicyConfig
    checkpoints: Path
    """Folder of the checkpoints, from which a killed training may resume."""
    loaded_facts: JsonObject
    """About prompts and teachers."""
    activity: Activity

    def __post_init__(self) -> None:
        self.num_steps = self.config.num_steps
        self.temperature = self.divergence_temperature = self.config.temperature
        self.wants_entropy = self.objective.wants_entropy
        self.divergence = self.objective.divergence

    @property
    def facts(self) -> JsonObject:  # type: ignore[override]  # the trainer only reads it
        """Return teachers with their coefficients, facts about the prompts, and this attempt's failed rewards."""
        num_errors = 0 if self.rewards is None else self.rewards.num_errors
        return {**self.loaded_facts, **({"num_reward_errors": num_errors} if num_errors else {})}

    def batch(self, step: int) -> Batch:
        """Return the part of a batch of rollouts that this step trains on; the batch's first step has it made."""
        index, update = divmod(step, self.config.updates_per_batch)
        checkpoints = saved_steps(self.checkpoints)
        # After the first update they come from disk, unless the file was lost and the batch sampled again.
        self.activity.begin(step, "sampling and scoring")
        rollouts = self._with_old_logprobs(self.queue.get(index, step))
        self.activity.begin(step, "training")
        if update == 0:
            for teacher in self.teachers.by_name.values():
                if isinstance(teacher, LocalTeacher):
                    teacher.begin_batch()
            # Training resumes from the oldest checkpoint if newer ones are damaged.
            oldest = min(checkpoints, default=0)
            self.queue.forget_before(min(oldest, step) // self.config.updates_per_batch)
        samples = rollouts.parts[update % self.config.num_substeps]
        metrics = staleness(samples, step)
        if update > 0:
            return Batch(samples, metrics)
        # Those of recorded rollouts were counted when they were sampled.
        num_sampled = 0 if self.rewards is None else rollouts.num_sampled_tokens
        return Batch(samples, {**rollouts.metrics, **metrics}, num_sampled)

    def partition(self, sample: Sample) -> str:
        """Return the teacher's name if distributions are compared exactly, else an empty key."""
        return self.objective.partition(sample)

    def reference(self, samples: Sequence[Sample]) -> Reference | TopReference | None:
        """Return the distribution of the samples' teacher, of which there is one or none, if it is compared."""
        scored = [sample for sample in samples if isinstance(sample, ScoredSample)]
        name = scored[0].teacher if scored and self.objective.is_exact else None
        if name is None:
            return None
        teacher = self.teachers.by_name.get(name)
        if isinstance(teacher, ExactTeacher):
            return teacher.reference(scored)
        return TopReference.of([sample.teacher_scores for sample in scored])

    def token_values(self, sample: Sample) -> Mapping[str, Sequence[float]]:
        """See `Objective.token_values`."""
        return self.objective.token_values(sample)

    def loss(self, scores: TokenScores, values: Mapping[str, Tensor]) -> TokenLosses:
        return self.objective.loss(scores, values)

    def _with_old_logprobs(self, rollouts: RolloutBatch) -> RolloutBatch:
        """Return the batch with the student's log-probabilities before its first update; keep it for later updates."""
        samples = [sample for part in rollouts.parts for sample in part]
        if not self.objective.needs_old_logprobs or all(sample.old_logprobs for sample in samples):
            return rollouts
        scoring = ScoringSettings("student", 0.0, self.config.temperature, self.config.trainer.microbatch_tokens)
        scorer = SelfTeacher(scoring, self.student, nullcontext)
        scores = scorer.start([replace(sample, teacher_view=None) for sample in samples]).result()
        logprobs = (
            at_sampled_tokens(one.logprobs, sample.loss_mask) for one, sample in zip(scores, samples, strict=True)
        )
        parts = [[replace(sample, old_logprobs=next(logprobs)) for sample in part] for part in rollouts.parts]
        rollouts = replace(rollouts, parts=parts)
        self.queue.keep(rollouts)
        return rollouts
