"""Rollouts of the student before a training, scored by its teachers and rewards, for `on_policy.source: rollouts`."""

import logging
from contextlib import ExitStack, nullcontext
from pathlib import Path

from stillhouse.progress.state import Progress
from stillhouse.tracking import TrackedRun
from stillhouse.training.job import TrainJob
from stillhouse.training.model.student import Student
from stillhouse.training.on_policy.batches.queue import BatchQueue
from stillhouse.training.on_policy.batches.recorded import write_facts, write_recorded
from stillhouse.training.on_policy.load import load_maker
from stillhouse.training.on_policy.monitoring.activity import Activity
from stillhouse.training.ranks import Ranks
from stillhouse.training.results.teachers import consistency_warning
from stillhouse.types import JsonObject

logger = logging.getLogger(__name__)


def record_rollouts(job: TrainJob, student: Student, tracked: TrackedRun, progress: Progress) -> JsonObject:
    """Write the batches of one pass over the prompts, or of all steps if these are fewer; return facts.

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
        ranks = Ranks.single(student.device)
        loaded = load_maker(job, student, tracked, nullcontext, resources, activity, ranks)
        count = min(config.num_batches, loaded.num_batches_a_pass)
        queue = BatchQueue(loaded.maker.begin, job.work_dir / "rollouts")
        num_trajectories = num_tokens = 0
        for index in range(count):
            progress.update(job.method, index, count, doing="sampling and scoring")
            batch = queue.get(index, policy_version=0)
            write_recorded(job.output_dir, batch)
            num_trajectories += len(batch)
            num_tokens += int(batch.counts.sum())
        write_facts(job.output_dir, count, loaded.maker.objective.routes, loaded.facts)
    return {"rows": num_trajectories, "batches": count, "sampled_tokens": num_tokens, **loaded.facts}
