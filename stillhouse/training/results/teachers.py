"""Compares the teachers that score a student with those that wrote the rows of its SFT."""

from collections.abc import Set
from pathlib import Path

from stillhouse.training.job import TrainJob
from stillhouse.training.results.record import STUDENT_FILE, read_record


def consistency_warning(start: Path, job: TrainJob) -> str | None:
    """Return a warning for a student whose SFT was on rows of another teacher; None if they agree, or nothing is known.

    Where they differ, the gradient keeps a bias that no length of training removes (Lightning OPD, arXiv 2604.13010,
    "teacher consistency"). Models are compared by the last part of their names, which a server may spell otherwise.
    """
    if job.on_policy is None or not job.on_policy.needs_teacher:
        return None
    named = [teacher.model for teacher in job.on_policy.teachers] or [job.on_policy.teacher or job.teacher_ref]
    return teachers_warning(writers_of(start), {name for name in named if name is not None})


def writers_of(start: Path) -> set[str]:
    """Return the teachers that wrote the rows of a student's SFT by its record; empty where nothing is known."""
    if not (start / STUDENT_FILE).is_file():
        return set()
    return {name for stage in read_record(start).stages if stage.method == "sft" for name in stage.teachers}


def teachers_warning(wrote: Set[str], score: Set[str]) -> str | None:
    """Return the `consistency_warning` of the names of the teachers that wrote rows and of those that score."""
    if not wrote or not score or {_short(name) for name in wrote} & {_short(name) for name in score}:
        return None
    return (
        f"the student was fine-tuned on rows of {', '.join(sorted(wrote))}, and {', '.join(sorted(score))} scores its "
        "rollouts: that gives the gradient a bias which longer training does not remove. Score with the teacher that "
        "wrote the rows, or start from a student that the scoring teacher taught"
    )


def _short(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].lower()
