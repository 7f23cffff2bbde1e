"""What trainings did: their metrics, and runs of methods without a job."""

from pathlib import Path

import torch

from stillhouse.training.job import TrainJob
from stillhouse.training.loop.assembly import build_trainer
from stillhouse.training.loop.trainer import Trainer
from stillhouse.training.model.student import Student
from stillhouse.training.monitoring.metrics import StepRows
from stillhouse.training.on_policy.method import OnPolicy
from stillhouse.types import JsonObject


def read_metrics(path: Path) -> list[JsonObject]:
    """Return the rows of a metrics file."""
    return StepRows(path).read()


def logged(job: TrainJob, name: str) -> dict[int, float]:
    """Return the logged values of a metric by step."""
    rows = read_metrics(job.work_dir / "metrics.jsonl")
    return {row["step"]: row["metrics"][name] for row in rows if name in row["metrics"]}


def disturb(student: Student, size: float = 0.1, seed: int = 1) -> Student:
    """Change what is trained, as an optimiser does; return the student."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, parameter in student.trained_parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))
    return student


def trainer_of(method: OnPolicy) -> Trainer:
    """Return the trainer of a method that was loaded without a job."""
    work_dir = method.checkpoints.parent
    return build_trainer(method, method.student, method.config, work_dir=work_dir, identity={}, peak_tflops=1.0)


def final_of(method: OnPolicy) -> dict[str, float]:
    """Train to the end; return the last metrics."""
    return trainer_of(method).run()["final"]
