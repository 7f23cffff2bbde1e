"""Labels: the measurements of each trajectory, a shard at a time, in processes of this machine or on a cluster."""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from stillhouse.config import DistillConfig, RuntimeConfig
from stillhouse.dataset.labelling.label import Labelling, label_file, label_processes
from stillhouse.store import digest
from stillhouse.types import Artifact, JsonObject
from tasks.cache.shards import map_shards, record_shards
from tasks.cache.stage import RunTask, run_in_process
from tasks.prompts import metadata_file
from tasks.rollouts import Rollouts
from tasks.run.context import Run, RunContext
from tasks.run.interruption import run_until_done
from tasks.run.progress import progress
from tasks.run.stage import Stage
from tasks.sampling import TRAJECTORIES_FILE

LABELS = Stage("labels", version=5, result="{rows} labelled", left_out={"num_reward_errors": "reward errors"})

_WORTH_PROCESSES: Final = 4000
"""Rows from which worker processes are worth the seconds of their imports, unless the config asks for them."""


def label(rollouts: Rollouts, config: DistillConfig, run: Run) -> list[Artifact]:
    """Label each shard's trajectories with every measurement that needs no other model.

    Raises ConfigError if a file or tokenizer of the config cannot be used; InputError if an evaluation set cannot be
    read; FailureBudgetExceeded if rewards of too many trajectories of a shard failed.
    """
    started = time.monotonic()
    labelling = Labelling.of(config.dataset, tools=config.tools, student=config.student, sampling=rollouts.sampling)
    num_rows, num_labelled = sum(shard.num_rows for shard in rollouts.shards), 0
    progress().update(LABELS.name, 0, num_rows, doing="starting")

    def show(shard: Artifact, cached: bool) -> None:
        nonlocal num_labelled
        num_labelled += shard.num_rows
        progress().update(LABELS.name, num_labelled, num_rows)

    with _workers(run.context.runtime, len(rollouts.shards), num_rows) as (run_task, max_concurrent):
        work = map_shards(
            LABELS,
            run,
            rollouts.shards,
            on_result=show,
            shard_inputs=rollouts.metadata_of,
            max_concurrent=max_concurrent,
            run_task=run_task,
            labelling=labelling,
        )
        results = run_until_done(work)
    return record_shards(LABELS, results, run, seconds=time.monotonic() - started, inputs=rollouts.shards)


@contextmanager
def _workers(runtime: RuntimeConfig, num_shards: int, num_rows: int) -> Iterator[tuple[RunTask, int]]:
    """Yield what runs the tasks (a cluster, this process or its workers), and the number of concurrent shards."""
    num_cores = os.cpu_count() or 1
    if runtime.task_runner == "ray":
        from tasks.remote.ray_cluster import ray_workers

        with ray_workers(runtime, num_workers=num_cores) as run_task:
            yield run_task, max(1, num_shards)
        return
    num_processes = (runtime.num_threads or num_cores) if num_rows >= _WORTH_PROCESSES else 1
    if num_processes == 1:
        yield run_in_process, 1
        return
    progress().say(f"starting {num_processes} processes")
    with label_processes(num_processes):
        yield run_in_process, num_processes + 1


@LABELS.made_by
async def label_task(
    shard: Artifact, metadata: Artifact, labelling: Labelling, key: str, context: RunContext
) -> Artifact:
    """Label the trajectories of one shard."""

    def fill(folder: Path) -> tuple[int, JsonObject]:
        trajectories = Path(shard.uri) / TRAJECTORIES_FILE
        num_rows, failures = label_file(trajectories, metadata_file(metadata), labelling, folder)
        # Before the shard is stored: without its artifact, the next run scores it again.
        failures.check(labelling.tools.rewards_file, context.runtime.failure_budget)
        num_errors = failures.num_errors.total()
        return num_rows, {"num_reward_errors": num_errors} if num_errors else {}

    return await asyncio.to_thread(context.store.write, LABELS.name, digest(key), fill)
