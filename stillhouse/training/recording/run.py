"""Rollouts of the student before a training, scored by its teachers and rewards, for `on_policy.source: rollouts`."""

import logging
from contextlib import ExitStack, nullcontext
from pathlib import Path

from stillhouse.progress.state import Progress
from stillhouse.tracking import TrackedRun
from stillhouse.training.job import TrainJob
from stillhouse.training.model.student import Student
from stillhouse.training.on_policy.batches.queue import BatchQueue
from stillhouse.training.on_policy.batches.recorded import record
from stillhouse.training.on_policy.load import load_maker
from stillhouse.training.on_policy.monitoring.activity import Activity
from stillhouse.training.recording.consistency import consistency_warning
from stillhouse.types import JsonObject

logger = logging.getLogger(__name__)


def record_rollouts(job: TrainJob, student: Student, tracked: TrackedRun, progress: Progress) -> JsonObject:
    """Writes the batches of one pass over the prompts, or those of all steps if these are fewer; returns facts.

    Batches that were finished when it was killed are not sampled again.

    Raises:
        StillhouseError: of the kinds that `load_on_policy` names.
    """
    config = job.on_policy
    assert config is not None
    if warning := consistency_warning(Path(job.student_ref), job):
        logger.warning("%s", warning)
    with ExitStack() as resources:
        activity = Activity(progress, job.method, config.num_batches)
        loaded = load_maker(job, student, tracked, nullcontext, resources, activity)
        count = min(config.num_batches, loaded.num_batches_a_pass)
        queue = BatchQueue(loaded.maker.begin, job.work_dir / "rollouts", num_batches=count)
        batches = []
        for index in range(count):
            progress.update(job.method, index, count, doing="sampling and scoring")
            batches.append(queue.get(index, policy_version=0))
        job.output_dir.mkdir(parents=True, exist_ok=True)
        record(job.output_dir, batches, loaded.maker.objective.routes, loaded.facts)
        progress.update(job.method, count, count, doing="saving")
    samples = [sample for batch in batches for part in batch.parts for sample in part]
    kls = [kl for sample in samples for kl in sample.sampled_kl or ()]
    tokens = sum(batch.num_sampled_tokens for batch in batches)
    measured = {"teacher_kl": sum(kls) / max(1, tokens)} if kls else {}
    return {"trajectories": len(samples), "batches": count, "sampled_tokens": tokens, **measured, **loaded.facts}
