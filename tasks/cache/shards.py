"""Stages that run once for each shard, several shards at once, each with a cache entry of its own."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, Final

from prefect.context import AsyncClientContext

from stillhouse.inference.connections import shared_connections
from stillhouse.rollouts.summary import add_up
from stillhouse.types import Artifact, FrozenModel, JsonObject
from tasks.cache.stage import RunTask, find_cached, load_or_run_async, run_in_process
from tasks.run.context import Run
from tasks.run.interruption import run_until_done
from tasks.run.progress import PartProgress, rollout_stage
from tasks.run.stage import Stage

MAX_CONCURRENT_SHARDS: Final = 4
"""Shards that use a remote endpoint at the same time; they share its limits."""

ShardInputs = Callable[[Artifact], Mapping[str, Any]]


class Shards(FrozenModel):
    """A stage's artifacts, one for each shard of trajectories, in the order of the shards."""

    shards: tuple[Artifact, ...]
    facts: JsonObject


async def map_shards(
    stage: Stage,
    run: Run,
    shards: Sequence[Artifact],
    *,
    on_result: Callable[[Artifact, bool], None],
    shard_inputs: ShardInputs = lambda shard: {},
    max_concurrent: int = MAX_CONCURRENT_SHARDS,
    run_task: RunTask = run_in_process,
    **inputs: Any,
) -> list[tuple[Artifact, bool]]:
    """Return each shard's artifact and whether it came from the cache. A failure is raised once the others are done.

    The stage's task is a coroutine function that takes a shard as `shard`, what `shard_inputs` returns for it, and
    `inputs`; `on_result` is called with each artifact, and whether it came from the cache.
    """
    semaphore = asyncio.Semaphore(max_concurrent)

    async def run_shard(number: int, shard: Artifact) -> tuple[Artifact, bool]:
        all_inputs = {"shard": shard, **shard_inputs(shard), **inputs}
        artifact, cached = await asyncio.to_thread(find_cached, stage, run, all_inputs), True
        if artifact is None:
            async with semaphore:
                name = f"{stage.name} {number} of {len(shards)}"
                artifact, cached = await load_or_run_async(stage, run, all_inputs, run_task, task_run_name=name)
        on_result(artifact, cached)
        return artifact, cached

    # Without a client in the context each task would make one of its own, which takes a twentieth of a second.
    async with AsyncClientContext.get_or_create(), shared_connections():
        results = await asyncio.gather(*map(run_shard, count(1), shards), return_exceptions=True)
    collected = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        collected.append(result)
    return collected


def measure_shards(
    stage: Stage,
    run: Run,
    shards: Sequence[Artifact],
    *,
    num_steps: int = 1,
    shard_inputs: ShardInputs = lambda shard: {},
    **inputs: Any,
) -> list[Artifact]:
    """Do as `map_shards`, for measurements of trajectories: show the progress, record the stage, return its artifacts.

    The progress counts `num_steps` for each trajectory.
    """
    started = time.monotonic()

    def show_cached(artifact: Artifact, cached: bool) -> None:
        if cached:
            PartProgress(stage.name, artifact.uri, artifact.num_rows * num_steps).skip()

    with rollout_stage(stage.name, num_steps * sum(shard.num_rows for shard in shards)):
        work = map_shards(stage, run, shards, on_result=show_cached, shard_inputs=shard_inputs, **inputs)
        results = run_until_done(work)
    return record_shards(stage, results, run, seconds=time.monotonic() - started, inputs=[*shards, *inputs.values()])


def record_shards(
    stage: Stage, results: Sequence[tuple[Artifact, bool]], run: Run, *, seconds: float, inputs: Iterable[Any]
) -> list[Artifact]:
    """Record the `results` of `map_shards` of `inputs` and the wall time spent in the run; return the artifacts."""
    shards = tuple(artifact for artifact, _ in results)
    num_rows = sum(shard.num_rows for shard in shards)
    collected = Shards(shards=shards, facts={**add_up([shard.facts for shard in shards]), "rows": num_rows})
    run.record_stage(stage, collected, cached=all(cached for _, cached in results), seconds=seconds, inputs=inputs)
    return list(shards)
