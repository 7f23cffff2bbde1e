"""What a training has used: trajectories, tokens, floating-point operations, and seconds.

Operations are those of the mathematics, as `stillhouse.training.monitoring.flops` counts them. A forward pass costs a
third of a training step over all weights. Sampling is counted as one forward pass over each trajectory, prompt
included, although trajectories of one prompt share its pass; so is a teacher's scoring.
"""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path

import torch

from stillhouse.config import StudentConfig
from stillhouse.training.job import TrainJob
from stillhouse.training.model.load import load_student
from stillhouse.training.monitoring.flops import ModelFlops, model_flops


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Of some optimiser steps together."""

    tokens: float = 0.0
    """Trained on, prompts included."""
    targets: float = 0.0
    """Tokens with a loss: those sampled by the student, or written by whoever wrote the rows."""
    student_flops: float = 0.0
    """Training, and sampling where the student samples."""
    teacher_flops: float = 0.0
    """Scoring; nothing where rows came from elsewhere."""
    seconds: float = 0.0
    """Of its optimiser steps, sampling and scoring included. Other work on the machine adds to them."""

    @property
    def flops(self) -> float:
        """Of both."""
        return self.student_flops + self.teacher_flops

    def __add__(self, other: "StepCosts") -> "StepCosts":
        return StepCosts(
            self.tokens + other.tokens,
            self.targets + other.targets,
            self.student_flops + other.student_flops,
            self.teacher_flops + other.teacher_flops,
            self.seconds + other.seconds,
        )


def costs_of(
    start: Path, teacher: Path | None, job: TrainJob, metrics: Mapping[str, float], num_steps: int
) -> StepCosts:
    """Costs of `num_steps` steps of a training, of which `metrics` are the means.

    Args:
        start: model that is trained.
        teacher: model that scores; None for none.
        job: says what is trained of it, and how many sequences a step takes.
        metrics: of the trainer, by bare name.
        num_steps: since the row of metrics before.
    """
    tokens = metrics["tokens_per_s"] * metrics["step_s"]
    lengths = _lengths(round(tokens), _rows_of_a_step(job))
    is_sampled = job.method == "on_policy"
    step = step_costs(
        start,
        teacher,
        job.student,
        lengths,
        round(metrics["supervised_share"] * tokens),
        is_sampled=is_sampled,
        seconds=metrics["step_s"],
    )
    return StepCosts(*(num_steps * cost for cost in astuple(step)))


def step_costs(
    start: Path,
    teacher: Path | None,
    student: StudentConfig,
    lengths: Sequence[int],
    num_targets: int,
    *,
    is_sampled: bool,
    seconds: float,
) -> StepCosts:
    """Costs of one step on rows of these lengths, of which `num_targets` tokens have a loss."""
    training = _flops(start, student.model_dump_json()).of_step(lengths, num_targets)
    sampling = _flops(start, None).of_step(lengths, num_targets) / 3 if is_sampled else 0.0
    scoring = 0.0 if teacher is None else _flops(teacher, None).of_step(lengths, num_targets) / 3
    return StepCosts(sum(lengths), num_targets, training + sampling, scoring, seconds)


def _lengths(num_tokens: int, num_rows: int) -> list[int]:
    """Rows that share the tokens out evenly."""
    each, left = divmod(num_tokens, num_rows)
    return [each + 1] * left + [each] * (num_rows - left)


def _rows_of_a_step(job: TrainJob) -> int:
    if job.sft is not None:
        return job.sft.batch_size
    assert job.on_policy is not None
    return job.on_policy.prompts_per_step * job.on_policy.group_size // job.on_policy.num_substeps


@cache
def _flops(folder: Path, trained: str | None) -> ModelFlops:
    """Of a training step over what `trained`, a section of a config as JSON, says, or over all weights."""
    config = StudentConfig.model_validate_json(trained or '{"parameters": "full", "dtype": "float32"}')
    student = load_student(str(folder), config, torch.device("cpu"), seed=0)
    return model_flops(student.step.backbone, student.head, student.causal_lm.config)
