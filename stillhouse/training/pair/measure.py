"""Measures a pair in the training process: the student samples a few prompts, and each of its teachers scores them."""

from typing import Final

from stillhouse.progress.state import Progress
from stillhouse.store.records import write_jsonl
from stillhouse.training.job import TrainJob
from stillhouse.training.model.student import Student
from stillhouse.training.pair.finding import FINDINGS_FILE, PairFinding
from stillhouse.training.pair.samples import sample_student
from stillhouse.training.pair.teacher import measure_teacher
from stillhouse.training.trajectories import sampled_runs
from stillhouse.types import JsonObject

_ENDED_SHARE: Final = 0.5


def measure_pair(job: TrainJob, student: Student, progress: Progress) -> JsonObject:
    """Write what is found about the pair to `job.output_dir`; return how much was sampled, and how long each part took.

    A teacher that refuses, by its vocabulary or its server, is a finding and no error.

    Raises:
        InputError: no prompt leaves room for an answer.
        StillhouseError: of the kinds that the sampler names.
    """
    config = job.on_policy
    assert config is not None
    total = 1 + len(config.teachers)
    progress.update(job.method, 0, total, doing="sampling")
    samples, facts = sample_student(job, student)
    findings: list[PairFinding] = []
    for number, settings in enumerate(config.teachers, 1):
        progress.update(job.method, number, total, doing=f"scoring with {settings.name}")
        found, seconds = measure_teacher(settings, samples, job)
        findings += found
        facts["scoring_s"] += seconds
    runs = [run for trajectory in samples.trajectories for run in sampled_runs(trajectory)]
    findings.append(_student_ends(sum(run[-1] in samples.ends for run in runs) / len(runs)))
    job.output_dir.mkdir(parents=True, exist_ok=True)
    write_jsonl(job.output_dir / FINDINGS_FILE, [finding._asdict() for finding in findings])
    progress.update(job.method, total, total)
    return facts


def _student_ends(share: float) -> PairFinding:
    seen = f"{share:.0%} of its completions end with an end-of-turn token"
    if share >= _ENDED_SHARE:
        return PairFinding("student: ends", "fine", seen)
    remedy = "Raise on_policy.max_tokens if its answers are longer, or train it with SFT first"
    return PairFinding("student: ends", "change", f"{seen}: a cut one does not show how to end. {remedy}")
