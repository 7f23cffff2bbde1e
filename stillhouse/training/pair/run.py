"""Measures a pair in the training process: the student samples a few prompts, and each of its teachers scores them."""

from stillhouse.progress.state import Progress
from stillhouse.training.job import TrainJob
from stillhouse.training.model.student import Student
from stillhouse.training.pair.figures import PairFigures, TeacherFigures
from stillhouse.training.pair.samples import sample_student
from stillhouse.training.pair.teacher import measure_teacher
from stillhouse.types import JsonObject


def measure_pair(job: TrainJob, student: Student, progress: Progress) -> JsonObject:
    """Writes the `PairFigures` of the job's prompts to `job.output_dir`; returns facts.

    What a teacher refuses, its vocabulary or its server, is a figure and no error.

    Raises:
        StillhouseError: of the kinds that `sample_student` names.
    """
    config = job.on_policy
    assert config is not None
    total = 1 + len(config.teachers)
    progress.update(job.method, 0, total, doing="sampling")
    samples = sample_student(job, student)
    teachers: list[TeacherFigures] = []
    for settings in config.teachers:
        progress.update(job.method, 1 + len(teachers), total, doing=f"scoring with {settings.name}")
        teachers.append(measure_teacher(settings, samples, job))
    job.output_dir.mkdir(parents=True, exist_ok=True)
    PairFigures(samples.figures(), tuple(teachers)).write(job.output_dir)
    progress.update(job.method, total, total)
    return {"rows": len(samples.trajectories)}
