"""Runs a training job with the launcher that its runtime names. Free of torch."""

from collections.abc import Callable, Mapping
from typing import Final

from stillhouse.progress.state import Progress
from stillhouse.store.atomic import write_atomic
from stillhouse.training.job import JOB_FILE, TrainJob
from stillhouse.training.launch.cluster import train_on_cluster
from stillhouse.training.launch.local import train_by_torchrun, train_in_subprocess, train_inline
from stillhouse.training.launch.ray_jobs import RayJobs
from stillhouse.types import JsonObject

LAUNCHERS: Final[Mapping[str, Callable[[TrainJob, Progress], JsonObject]]] = {
    "inline": train_inline,
    "subprocess": train_in_subprocess,
    "torchrun": train_by_torchrun,
    "ray": lambda job, progress: train_on_cluster(job, progress, RayJobs(job.runtime)),
}
"""By name, as `runtime.launcher` has it: each trains a job, which also lies in its work folder, to the end."""


def train(job: TrainJob, progress: Progress) -> JsonObject:
    """Train to the end, from the newest checkpoint in the job's work folder; return the trainer's facts.

    Call it from the main thread, which signals reach: however it ends, no process of the training is left running. On a
    cluster, though, a flow that is killed leaves its job running; the next call for the same work folder follows it.

    Raises:
        TrainingError: the training failed; the message holds the end of its log.
        TrainingKilled: something from outside ended it, such as the system for lack of memory.
        StoreError: the work folder cannot be written.
    """
    write_atomic(job.work_dir / JOB_FILE, job.model_dump_json(indent=1).encode())
    return LAUNCHERS[job.runtime.launcher](job, progress)
