"""Stages whose shards are worked on by a Dask cluster."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prefect import Task

from stillhouse.config import RuntimeConfig
from stillhouse.errors import ConfigError
from stillhouse.types import Artifact
from tasks.caching import Stage, arguments_of, configured, find_problem, warn_of_loss, was_cached
from tasks.run import Run


def recall_on_dask(
    stage: Stage,
    task: Task[..., Any],
    run: Run,
    shards: Sequence[Artifact],
    *,
    own_inputs: Callable[[Artifact], Mapping[str, Any]],
    **inputs: Any,
) -> list[tuple[Artifact, bool]]:
    """As `tasks.caching.recall_shards`, in the workers of a cluster, which need the store under the same path.

    Raises:
        ConfigError: the extra `dask` is not installed.
    """
    with _task_runner(run.context.runtime) as runner:

        def start(shard: Artifact, *, refresh: bool = False) -> Any:
            arguments = arguments_of(stage, run, {"shard": shard, **own_inputs(shard), **inputs})
            return runner.submit(configured(task, stage, run, refresh=refresh), arguments)

        def finished(shard: Artifact, future: Any) -> tuple[Artifact, bool]:
            future.wait()
            artifact: Artifact = future.state.result()
            cached = was_cached(future.state)
            if not cached or (problem := find_problem(artifact, run)) is None:
                return artifact, cached
            warn_of_loss(stage, problem)
            return start(shard, refresh=True).result(), False

        futures = [start(shard) for shard in shards]
        return [finished(shard, future) for shard, future in zip(shards, futures, strict=True)]


def _task_runner(runtime: RuntimeConfig) -> Any:
    try:
        from prefect_dask import DaskTaskRunner
    except ImportError as error:
        raise ConfigError(
            "runtime.task_runner is dask, but prefect-dask is not installed: pip install -e '.[dask]', or set "
            "runtime.task_runner to local"
        ) from error
    # Each tells of every connection it opens.
    logging.getLogger("distributed").setLevel(logging.WARNING)
    if runtime.dask_address is not None:
        return DaskTaskRunner(address=runtime.dask_address)
    cluster = {"n_workers": runtime.label_processes, "threads_per_worker": 1, "dashboard_address": None}
    return DaskTaskRunner(cluster_kwargs=cluster)
