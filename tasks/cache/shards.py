"""Stages that run once for each shard, several shards at once, each with a cache entry of its own."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from prefect import Task
from pydantic import BaseModel, ConfigDict

from stillhouse.rollouts.summary import add_up
from stillhouse.types import Artifact, JsonObject
from tasks.cache.stage import RunTask, Stage, find_cached, load_or_run_async, run_in_process
from tasks.run.context import Run

MAX_CONCURRENT_SHARDS: Final = 4
"""Shards that ask a remote endpoint at the same time; they share its limits."""


class Shards(BaseModel):
    """A stage's artifacts, one for each shard of trajectories, in the order of the shards."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    shards: tuple[Artifact, ...]
    facts: JsonObject


async def map_shards(
    stage: Stage,
    task: Task[..., Any],
    run: Run,
    shards: Sequence[Artifact],
    *,
    on_result: Callable[[Artifact, bool], None],
    shard_inputs: Callable[[Artifact], Mapping[str, Any]] = lambda shard: {},
    max_concurrent: int = MAX_CONCURRENT_SHARDS,
    run_task: RunTask = run_in_process,
    **inputs: Any,
) -> list[tuple[Artifact, bool]]:
    """Returns each shard's artifact and whether it came from the cache. A failure is raised once the others are done.

    Args:
        stage: names the cache entries.
        task: a coroutine function that takes `shard` on top of what `call_stage` says.
        run: the flow run this belongs to.
        shards: one by one the task's `shard`.
        on_result: called with each artifact, and whether it came from the cache.
        shard_inputs: what a shard's result depends on besides `inputs` and the shard itself.
        max_concurrent: most tasks at a time.
        run_task: runs the task of one shard.
        inputs: what all results depend on.
    """
    semaphore = asyncio.Semaphore(max_concurrent)

    async def run_shard(shard: Artifact) -> tuple[Artifact, bool]:
        all_inputs = {"shard": shard, **shard_inputs(shard), **inputs}
        artifact, cached = await _find_cached(stage, run, all_inputs), True
        if artifact is None:
            async with semaphore:
                artifact, cached = await load_or_run_async(stage, task, run, all_inputs, run_task)
        on_result(artifact, cached)
        return artifact, cached

    results = await asyncio.gather(*map(run_shard, shards), return_exceptions=True)
    collected = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        collected.append(result)
    return collected


async def _find_cached(stage: Stage, run: Run, inputs: Mapping[str, Any]) -> Artifact | None:
    """As `find_cached`, in a thread where it waits for a network."""
    if run.context.store.remote is None:
        return find_cached(stage, run, inputs)
    return await asyncio.to_thread(find_cached, stage, run, inputs)


def record_shards(
    stage: Stage, results: Sequence[tuple[Artifact, bool]], run: Run, *, seconds: float
) -> list[Artifact]:
    """Records a stage of shards in the run and returns its artifacts.

    Args:
        stage: that made them.
        results: of `map_shards`.
        run: the flow run this belongs to.
        seconds: wall time that the run spent on it.
    """
    shards = tuple(artifact for artifact, _ in results)
    num_rows = sum(shard.num_rows for shard in shards)
    collected = Shards(shards=shards, facts={**add_up([shard.facts for shard in shards]), "rows": num_rows})
    run.record_stage(stage.name, collected, cached=all(cached for _, cached in results), seconds=seconds)
    return list(shards)
