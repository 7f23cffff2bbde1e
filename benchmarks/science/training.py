"""The one door to the project's trainer: a training in, the student's folder and what was measured on the way out.

A training runs as any training job does. It leaves a checkpoint at each step that is to be measured; once it has ended,
the student of each is examined, so that measuring takes nothing from what is measured.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import orjson
import torch

from benchmarks.science.costs import StepCosts, costs_of
from benchmarks.science.exams import Exam
from benchmarks.science.tasks.rows import PromptFiles
from stillhouse.chat.refs import model_identity
from stillhouse.config import OnPolicyConfig, RuntimeConfig, SftConfig, StudentConfig
from stillhouse.progress.state import NoProgress
from stillhouse.store import digest, file_sha256
from stillhouse.store.atomic import write_atomic
from stillhouse.training.job import TrainJob
from stillhouse.training.launch.launch import train as train_job
from stillhouse.training.loop.checkpoint import load_weights
from stillhouse.training.loop.checkpoint_folder import saved_steps
from stillhouse.training.loop.weights import Weights
from stillhouse.training.model.load import load_student
from stillhouse.training.monitoring.metrics import METRICS_FILE, read_metrics
from stillhouse.training.ranks import Ranks
from stillhouse.training.workdir import exclusive
from stillhouse.types import JsonObject

FULL: Final = StudentConfig(parameters="full", dtype="float32", max_length=512)
"""All weights trained."""
_COURSE_FILE: Final = "course.json"
_LONGEST_TRAINING_S: Final = 7200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One training and when to measure it."""

    start: Path
    """Folder of the model it starts from."""
    config: SftConfig | OnPolicyConfig
    measure_every: int
    """Optimiser steps between two measurements; the start and the end are measured in any case."""
    student: StudentConfig = FULL
    prompts: PromptFiles | None = None
    """On-policy: what is sampled from."""
    teacher: Path | None = None
    """On-policy: who scores; None where nobody does, or where the config names teachers, which are of one size."""

    @property
    def scorer(self) -> Path | None:
        """A model whose scoring costs what any of the teachers' does."""
        named = [] if isinstance(self.config, SftConfig) else [Path(str(one.model)) for one in self.config.teachers]
        return self.teacher or next(iter(named), None)

    def job(self, folder: Path) -> TrainJob:
        """The job for the trainer."""
        updates = {
            "checkpoint_every_steps": self.measure_every,
            "log_every_steps": self.measure_every,
            "keep_checkpoints": 1_000_000,
        }
        config = self.config.model_copy(update=updates)
        is_sft = isinstance(config, SftConfig)
        return TrainJob(
            method="sft" if is_sft else "on_policy",
            student_ref=str(self.start),
            student=self.student,
            sft=config if is_sft else None,
            on_policy=None if is_sft else config,
            prompts_file=self.prompts.prompts if self.prompts else None,
            metadata_file=self.prompts.metadata if self.prompts else None,
            teacher_ref=str(self.teacher) if self.teacher else None,
            work_dir=folder / "work",
            output_dir=folder / "student",
            # A peak that is given is not measured; nothing here looks at MFU.
            runtime=RuntimeConfig(
                store=str(folder), launcher="inline", num_threads=1, label_processes=1, device="cpu", peak_tflops=1.0
            ),
        )

    def digest(self, exams: Mapping[str, Exam]) -> str:
        """Of all that its course depends on."""
        facts = {
            "training": self.job(Path("anywhere")).identity(),
            "start": model_identity(str(self.start)),
            "measure_every": self.measure_every,
            "metadata": file_sha256(self.prompts.metadata) if self.prompts else None,
            "exams": {name: exam.identity() for name, exam in exams.items()},
        }
        return digest(facts)[:16]


@dataclass(frozen=True, slots=True)
class Point:
    """How things stood after some steps."""

    step: int
    accuracies: dict[str, float]
    """By exam."""
    costs: StepCosts
    """Of all steps so far."""
    metrics: dict[str, float] = field(default_factory=dict)
    """What the trainer reported of the steps since the point before, by bare name."""


@dataclass(frozen=True, slots=True)
class Course:
    """A training that has ended."""

    folder: Path
    """Of the student."""
    points: list[Point]
    """From the start to the end."""
    seconds: float
    """That the trainer took, measuring left out."""

    def write(self, path: Path) -> None:
        """Writes it, whole or not at all."""
        stored = {"seconds": self.seconds, "points": [asdict(point) for point in self.points]}
        write_atomic(path, orjson.dumps(stored))

    @classmethod
    def read(cls, path: Path) -> Self:
        """What `write` wrote next to the student's folder."""
        stored: Any = orjson.loads(path.read_bytes())
        points = [Point(**{**point, "costs": StepCosts(**point["costs"])}) for point in stored["points"]]
        return cls(path.parent / "student", points, stored["seconds"])


def course_of(training: Training, exams: Mapping[str, Exam], store: Path) -> Course:
    """The course of the training: run now, continued where it was killed, or at hand since it ran before.

    Args:
        training: what to run.
        exams: by name; taken by the student at each point.
        store: holds a folder for each training; processes that want the same one wait for each other.

    Raises:
        StillhouseError: the training failed.
    """
    folder = store / training.digest(exams)
    path = folder / _COURSE_FILE
    with exclusive(folder, wait_s=_LONGEST_TRAINING_S):
        if path.is_file():
            return Course.read(path)
        job = training.job(folder)
        facts = train_job(job, NoProgress())
        course = Course(job.output_dir, _points(training, job, exams), facts["seconds"])
        course.write(path)
        shutil.rmtree(job.work_dir)
    return course


def _points(training: Training, job: TrainJob, exams: Mapping[str, Exam]) -> list[Point]:
    """What was logged and is measured at every checkpoint."""
    rows = {row["step"]: _bare(row["metrics"]) for row in read_metrics(job.work_dir / METRICS_FILE)}
    steps = [0, *sorted(saved_steps(job.work_dir / "checkpoints"))]
    accuracies = _accuracies(job, steps, exams)
    costs, points = StepCosts(), []
    for before, step in zip([0, *steps[:-1]], steps, strict=True):
        metrics = rows.get(step, {})
        if step > before:
            costs += costs_of(training.start, training.scorer, job, metrics, num_steps=step - before)
        points.append(Point(step, accuracies[step], costs, metrics))
    return points


def _accuracies(job: TrainJob, steps: Sequence[int], exams: Mapping[str, Exam]) -> dict[int, dict[str, float]]:
    device = torch.device("cpu")
    student = load_student(job.student_ref, job.student, device, job.trainer.seed)
    weights = Weights(student, job.trainer, Ranks.single(device))
    made = {}
    for step in steps:
        if step:
            weights.replace(load_weights(job.work_dir / "checkpoints", step))
        made[step] = {name: exam.accuracy(student) for name, exam in exams.items()}
    return made


def _bare(metrics: JsonObject) -> dict[str, float]:
    return {name.partition("/")[2]: value for name, value in metrics.items()}
