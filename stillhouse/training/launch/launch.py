"""Runs a training job where its runtime says. Free of torch."""

from collections.abc import Mapping
from typing import Final, Protocol

from stillhouse.errors import ConfigError
from stillhouse.progress.state import Progress
from stillhouse.store.atomic import write_atomic
from stillhouse.training.job import JOB_FILE, TrainJob
from stillhouse.training.launch.guarded import train_guarded
from stillhouse.training.launch.inline import train_inline
from stillhouse.training.launch.ray_jobs import train_by_ray
from stillhouse.training.launch.torchrun import train_by_torchrun
from stillhouse.types import JsonObject


class Launcher(Protocol):
    """Trains a job somewhere, which finds its own description in its work folder."""

    def __call__(self, job: TrainJob, progress: Progress) -> JsonObject:
        """Trains to the end; the trainer's facts. However it is left, nothing of the training goes on.

        Except on a cluster: what a killed flow left behind there is followed on when it is called again.
        """


LAUNCHERS: Final[Mapping[str, Launcher]] = {
    "inline": train_inline,
    "subprocess": train_guarded,
    "torchrun": train_by_torchrun,
    "ray": train_by_ray,
}
"""By name, as `runtime.launcher` has it."""


def train(job: TrainJob, progress: Progress) -> JsonObject:
    """Trains to the end, from the newest checkpoint in the job's work folder; the trainer's facts.

    Call it from the main thread, which signals reach: however it is left, the processes it started are ended.

    Raises:
        ConfigError: the method does not train in several processes.
        TrainingError: the training failed; the message holds its last words.
        TrainingKilled: something from outside ended it, the system for want of memory for instance.
        StoreError: the work folder cannot be written.
    """
    num_ranks = job.runtime.num_processes * job.runtime.num_hosts
    if job.method == "on_policy" and num_ranks > 1:
        raise ConfigError(
            f"runtime.num_processes = {job.runtime.num_processes} and runtime.num_hosts = {job.runtime.num_hosts}: "
            "on-policy distillation samples from the student while it trains it, in one process. Set both to 1"
        )
    write_atomic(job.work_dir / JOB_FILE, job.model_dump_json(indent=1).encode())
    return LAUNCHERS[job.runtime.launcher](job, progress)
