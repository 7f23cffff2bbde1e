"""When a stage's result may be used again, and how that is checked.

Prefect returns a cached manifest without checking the files it names; `call_stage` checks them, and runs the stage
again when they are gone or altered.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from prefect import Task
from prefect.filesystems import LocalFileSystem
from prefect.results import ResultStore
from prefect.states import State
from prefect.utilities.engine import link_state_to_task_run_result

from stillhouse.types import Artifact
from tasks.cache.results import artifacts_in, download_record, results_folder, upload_result, with_local_paths
from tasks.run.context import Run
from tasks.run.graph import made_of
from tasks.run.stage import Stage

RunTask = Callable[[Task[..., Any], dict[str, Any]], Awaitable[State[Any]]]
"""Runs an asynchronous task with arguments, in this process or elsewhere, and returns its final state."""

_CACHED: Final = "Cached"
"""Name of the state of a task run whose result came from the cache."""
_logger = logging.getLogger("stillhouse.caching")


def call_stage(stage: Stage, run: Run, *, label: str | None = None, **inputs: Any) -> Any:
    """Return the stage's result, from the cache if it is there and intact, and record the stage in the run.

    The run records it as `label`, where a stage runs more than once. `inputs` is all that the result depends on, and
    the key.
    """
    started = time.monotonic()
    result, cached = load_or_run(stage, run, inputs, task_run_name=label or stage.name)
    seconds = time.monotonic() - started
    run.record_stage(stage, result, cached=cached, seconds=seconds, label=label, inputs=inputs.values())
    return result


def load_or_run(
    stage: Stage,
    run: Run,
    inputs: Mapping[str, Any],
    *,
    unkeyed: Mapping[str, Any] = MappingProxyType({}),
    **options: Any,
) -> tuple[Any, bool]:
    """Return the stage's result and whether it came from the cache; unlike `call_stage`, record nothing.

    `unkeyed` are arguments of the task on which the key does not depend; `options` are Prefect's of the task.
    """
    store, key = run.context.store, stage.key(inputs)
    arguments = {**inputs, **unkeyed, "key": key, "context": run.context}
    uploaded = download_record(store, key)
    _tell_if_made(stage, run, key, options)
    state = _cached_task(stage, run, **options)(**arguments, return_state=True)
    result = with_local_paths(state.result(), store)
    if _discard_damaged(state, result, stage, run):
        uploaded = None
        state = _cached_task(stage, run, refresh=True, **options)(**arguments, return_state=True)
        result = with_local_paths(state.result(), store)
    upload_result(result, key, uploaded, store)
    # Prefect knows the object that the task returned, not the one that was read from the store.
    link_state_to_task_run_result(state, result)
    return result, state.name == _CACHED


async def run_in_process(task: Task[..., Any], arguments: dict[str, Any]) -> State[Any]:
    return await task(**arguments, return_state=True)


async def load_or_run_async(
    stage: Stage, run: Run, inputs: Mapping[str, Any], run_task: RunTask = run_in_process, **options: Any
) -> tuple[Artifact, bool]:
    """Do as `load_or_run`, for a task that is a coroutine function."""
    store, key = run.context.store, stage.key(inputs)
    arguments = {**inputs, "key": key, "context": run.context}
    uploaded = await asyncio.to_thread(download_record, store, key)
    _tell_if_made(stage, run, key, options)
    state = await run_task(_cached_task(stage, run, **options), arguments)
    artifact: Artifact = with_local_paths(await state.aresult(), store)
    if _discard_damaged(state, artifact, stage, run):
        uploaded = None
        state = await run_task(_cached_task(stage, run, refresh=True, **options), arguments)
        artifact = with_local_paths(await state.aresult(), store)
    await asyncio.to_thread(upload_result, artifact, key, uploaded, store)
    link_state_to_task_run_result(state, artifact)
    return artifact, state.name == _CACHED


def find_cached(stage: Stage, run: Run, inputs: Mapping[str, Any], *, ignore_refresh: bool = False) -> Any:
    """Return the cached result for `inputs`, without a task run, which costs Prefect 40 ms even when cached.

    None if there is none, if its files are gone or altered, or if the config refreshes the stage.
    """
    if stage.name in run.context.runtime.refresh and not ignore_refresh:
        return None
    store = run.context.store
    results = ResultStore(result_storage=LocalFileSystem(basepath=str(results_folder(store))))
    key = stage.key(inputs)
    uploaded = download_record(store, key)
    if not results.exists(key):
        return None
    result = with_local_paths(results.read(key).result, store)
    if (problem := _find_damage(result, run)) is not None:
        _logger.warning("%s: a stored result cannot be used: %s; it is made again", stage.name, problem)
        return None
    upload_result(result, key, uploaded, store)
    return made_of(inputs.values(), result)


def _tell_if_made(stage: Stage, run: Run, key: str, options: Mapping[str, Any]) -> None:
    """Log that a stage runs, unless its result is in the store, and why."""
    record = results_folder(run.context.store) / key
    if stage.name in run.context.runtime.refresh:
        why = "runtime.refresh names it"
    elif record.exists():
        return
    elif next(record.parent.glob(f"v{stage.version}-*"), None) is None:
        why = f"the store has no result of version {stage.version}"
    else:
        why = "an input or a setting has changed"
    # 16 digits of the digest tell stages apart, 64 would fill the line.
    _logger.info("%s runs: %s (%s)", options.get("task_run_name", stage.name), why, key[:-48])


def _cached_task(stage: Stage, run: Run, *, refresh: bool = False, **options: Any) -> Task[..., Any]:
    """Return the task with its results in the run's store; it reads them unless `refresh` or the config says not to."""
    return stage.task.with_options(
        **options,
        result_storage=results_folder(run.context.store),
        refresh_cache=refresh or stage.name in run.context.runtime.refresh,
    )


def _find_damage(result: Any, run: Run) -> str | None:
    """Return why the files of a result cannot be used, or None; what only other machines have is fetched first."""
    if next(artifacts_in(result), None) is None:
        return "its record names no artifact"
    return next(filter(None, map(run.context.store.obtain, artifacts_in(result))), None)


def _discard_damaged(state: State[Any], result: Any, stage: Stage, run: Run) -> bool:
    """Return whether a cached result cannot be used; log that, and remove it from the storage that machines share."""
    problem = _find_damage(result, run) if state.name == _CACHED else None
    if problem is None:
        return False
    _logger.warning("%s: the cached result cannot be used: %s; running the stage again", stage.name, problem)
    for artifact in artifacts_in(result):
        run.context.store.forget(artifact)
    return True
