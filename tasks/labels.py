"""Labels: what is measured of each trajectory, a shard at a time, in processes of this machine or on a Dask cluster."""

import asyncio
import os
import time
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Final

from prefect import task

from stillhouse.config import DistillConfig, RuntimeConfig
from stillhouse.dataset.labelling.label import Labelling
from stillhouse.dataset.labelling.pool import label_file, label_processes
from stillhouse.store import digest
from stillhouse.types import Artifact, JsonObject
from tasks.caching import CACHED_STAGE, Stage, recall_shards
from tasks.interruption import run_until_done
from tasks.progress import progress
from tasks.prompts import metadata_file
from tasks.rollouts import Rollouts
from tasks.run import Run, RunContext
from tasks.sampling import TRAJECTORIES_FILE
from tasks.shards import note_shards

LABELS = Stage("labels", version=2)

_WORTH_PROCESSES: Final = 4000
"""Rows from which other processes are worth the seconds it takes them to import what they need."""
_pool: ContextVar[Executor | None] = ContextVar("_pool", default=None)


def label(rollouts: Rollouts, config: DistillConfig, run: Run) -> list[Artifact]:
    """Each shard's trajectories with everything measured of them that needs no other model.

    Raises:
        ConfigError: a file or a tokenizer that the config names cannot be used.
        InputError: an evaluation set cannot be read.
    """
    started = time.monotonic()
    runtime = run.context.runtime
    labelling = Labelling.of(
        config.dataset, tools=config.tools, student=config.student.model, sampling=rollouts.sampling
    )
    if runtime.task_runner == "dask":
        from tasks.cluster import recall_on_dask

        results = recall_on_dask(
            LABELS, label_task, run, rollouts.shards, own_inputs=rollouts.metadata_of, labelling=labelling
        )
    else:
        with _processes(runtime, sum(shard.num_rows for shard in rollouts.shards)) as at_once:
            work = recall_shards(
                LABELS,
                label_task,
                run,
                rollouts.shards,
                skipped=_show,
                own_inputs=rollouts.metadata_of,
                at_once=at_once,
                labelling=labelling,
            )
            results = run_until_done(work)
    return note_shards(LABELS, results, run, seconds=time.monotonic() - started)


@contextmanager
def _processes(runtime: RuntimeConfig, num_rows: int) -> Iterator[int]:
    """Makes labels in other processes where that pays; how many shards may be under way at once."""
    if num_rows < _WORTH_PROCESSES or runtime.label_processes == 1:
        yield 1
        return
    num_processes = runtime.label_processes or os.cpu_count() or 1
    with label_processes(num_processes) as pool:
        token = _pool.set(pool)
        try:
            yield num_processes + 1
        finally:
            _pool.reset(token)


def _show(shard: Artifact) -> None:
    progress().update("labels", shard.num_rows, None)


@task(name="labels", **CACHED_STAGE)
async def label_task(
    shard: Artifact, metadata: Artifact, labelling: Labelling, key: str, context: RunContext
) -> Artifact:
    """Labels the trajectories of one shard."""
    arguments = (Path(shard.uri) / TRAJECTORIES_FILE, metadata_file(metadata), labelling)
    pool = _pool.get()

    def fill(folder: Path) -> tuple[int, JsonObject]:
        work = partial(label_file, *arguments, folder)
        num_rows = work() if pool is None else pool.submit(work).result()
        return num_rows, {}

    return await asyncio.to_thread(context.store.write, LABELS.name, digest(key), fill)
