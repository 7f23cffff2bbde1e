"""On-policy distillation: the student samples, teachers and rewards score, the student is updated.

A batch of rollouts has `prompts_per_step * group_size` trajectories and serves `num_substeps * num_passes` optimiser
steps. `algorithms/` defines the loss, `batches/` makes the batches.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
from torch import Tensor

from stillhouse.config import OnPolicyConfig
from stillhouse.training.head.scores import Reference, TokenLosses, TokenScores, TopReference
from stillhouse.training.loop.checkpoint_folder import saved_steps
from stillhouse.training.loop.method import Batch, Method
from stillhouse.training.model.student import Student
from stillhouse.training.on_policy.batches.shared import SharedBatches
from stillhouse.training.on_policy.monitoring.activity import Activity
from stillhouse.training.on_policy.monitoring.metrics import most_stale, staleness
from stillhouse.training.on_policy.rewards import RewardScorer
from stillhouse.training.on_policy.step import Objective
from stillhouse.training.on_policy.table import RolloutTable, Row
from stillhouse.training.on_policy.teachers.local import LocalTeacher
from stillhouse.training.on_policy.teachers.packed import ScoringSettings
from stillhouse.training.on_policy.teachers.router import TeacherRouter
from stillhouse.training.on_policy.teachers.self_teacher import SelfTeacher
from stillhouse.training.on_policy.teachers.teacher import ExactTeacher
from stillhouse.training.ranks import Ranks, merged
from stillhouse.types import JsonObject, Sample


@dataclass(eq=False)
class OnPolicy(Method):
    """The method `on_policy`."""

    name = "on_policy"
    headline = ("teacher_kl", "reward", "mean_completion_tokens")
    validation = ()
    """Empty: each batch is itself a measurement on fresh samples."""
    wants_entropy = True

    student: Student
    objective: Objective
    batches: SharedBatches
    teachers: TeacherRouter
    rewards: RewardScorer | None
    """Of the batches that are made here; None where they were recorded."""
    config: OnPolicyConfig
    checkpoints: Path
    """Folder of the checkpoints, from which a killed training may resume."""
    loaded_facts: JsonObject
    """About prompts and teachers."""
    activity: Activity
    ranks: Ranks

    def __post_init__(self) -> None:
        self.num_steps = self.config.num_steps
        self.temperature = self.divergence_temperature = self.config.temperature
        self.divergence = self.objective.divergence

    @property
    def facts(self) -> JsonObject:  # type: ignore[override]  # the trainer only reads it
        """Return teachers with their coefficients, facts about the prompts, and this attempt's failed rewards."""
        here = 0 if self.rewards is None else self.rewards.num_errors
        num_errors = int(self.ranks.sum_and_max({"errors": here}, {})[0]["errors"])
        return {**self.loaded_facts, **({"num_reward_errors": num_errors} if num_errors else {})}

    def batch(self, step: int) -> Batch:
        """Return the part of a batch of rollouts that this step trains on; the batch's first step has it made."""
        update = step % self.config.updates_per_batch
        checkpoints = saved_steps(self.checkpoints)
        # After the first update they come from disk, unless the file was lost and the batch sampled again.
        self.activity.begin(step, "sampling and scoring")
        self._table = table = self.table(step)
        self._values = self.objective.values(table)
        self.activity.begin(step, "training")
        if update == 0:
            for teacher in self.teachers.by_name.values():
                if isinstance(teacher, LocalTeacher):
                    teacher.begin_batch()
            # Training resumes from the oldest checkpoint if newer ones are damaged.
            oldest = min(checkpoints, default=0)
            self.batches.forget_before(min(oldest, step) // self.config.updates_per_batch)
        part = update % self.config.num_substeps
        metrics = staleness(table, part, step)
        if update > 0:
            return Batch(table.rows(part), metrics)
        # Those of recorded rollouts were counted when they were sampled.
        num_sampled = 0 if self.rewards is None else int(table.counts.sum())
        return Batch(table.rows(part), {**table.metrics, **metrics, **most_stale(table, step)}, num_sampled)

    def table(self, step: int) -> RolloutTable:
        """Return the table of the batch of rollouts that `step` trains on, with all that the loss needs."""
        table = self.batches.get(step // self.config.updates_per_batch, step)
        if self.objective.needs_old_logprobs and table.old_logprobs is None:
            table.old_logprobs = self._logprobs(table)
            self.batches.keep(table)
        return table

    def partition(self, sample: Sample) -> str:
        """Return the teacher's name if distributions are compared exactly, one at a time; else an empty key."""
        return self._table.teacher[cast(Row, sample).number] or "" if self.objective.is_exact else ""

    def reference(self, samples: Sequence[Sample]) -> Reference | TopReference | None:
        """Return the distribution of the samples' teacher, of which there is one or none, if it is compared."""
        name = self.partition(samples[0]) if samples else ""
        reference: Reference | TopReference | None = None
        if name and not isinstance(self.teachers.by_name.get(name), ExactTeacher):
            reference = TopReference.of([self._table.teacher_scores(cast(Row, sample).number) for sample in samples])
        for teacher in self.teachers.by_name.values() if self.objective.is_exact else ():
            is_asked = teacher.name == name
            # Teachers that processes share compute for one of them only when all call.
            if isinstance(teacher, ExactTeacher) and (is_asked or self.ranks.size > 1):
                given = teacher.reference(samples if is_asked else ())
                reference = given if is_asked else reference
        return reference

    def token_values(self, sample: Sample) -> Mapping[str, np.ndarray]:
        """Return the sample's parts of the columns that the loss reads."""
        return {name: column[cast(Row, sample).tokens] for name, column in self._values.items()}

    def loss(self, scores: TokenScores, values: Mapping[str, Tensor]) -> TokenLosses:
        return self.objective.loss(scores, values)

    def _logprobs(self, table: RolloutTable) -> np.ndarray:
        """Return the student's log-probabilities [T] of what was sampled."""
        scoring = ScoringSettings("student", 0.0, self.config.temperature, self.config.trainer.microbatch_tokens)
        scorer = SelfTeacher(scoring, self.student, nullcontext, self.ranks)
        mine = [replace(row, teacher_view=None) for row in table.rows()[self.ranks.rank :: self.ranks.size]]
        scores = {row.number: one.logprobs for row, one in zip(mine, scorer.start(mine).result(), strict=True)}
        return table.placed(merged(self.ranks.gather(scores)))
