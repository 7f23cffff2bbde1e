"""When a stage's result may be used again, and how that is checked.

A key is stage name / explicit version / digest of the stage's own config section and its inputs' fingerprints.
Prefect's own policies are not used: INPUTS does not know which task it belongs to, and TASK_SOURCE sees a changed
comment but not a changed helper. The version is bumped by hand when a stage's behaviour changes.

Prefect returns a cached manifest without checking the files it names; `call_stage` checks them, and runs the stage
again when they are gone or altered.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from prefect import Task
from prefect.context import TaskRunContext
from prefect.filesystems import LocalFileSystem
from prefect.results import ResultStore
from prefect.states import State
from pydantic import BaseModel

from stillhouse.config import StageName
from stillhouse.config.section import identity_of
from stillhouse.errors import StillhouseError, TrainingKilled
from stillhouse.store import digest
from stillhouse.types import Artifact, Model
from tasks.cache.results import artifacts_in, download_record, results_folder, upload_result, with_local_paths
from tasks.run.context import Run

RunTask = Callable[[Task[..., Any], dict[str, Any]], Awaitable[State[Any]]]
"""Runs an asynchronous task with arguments, in this process or elsewhere, and returns its final state."""

_CACHED: Final = "Cached"
"""Name of the state of a task run whose result came from the cache."""
_logger = logging.getLogger("stillhouse.caching")


@dataclass(frozen=True)
class Stage:
    """A stage's name and the version of its behaviour."""

    name: StageName
    version: int
    removed: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Inputs that the stage had once, with what they were where they were not used: they stay in its keys."""

    def key(self, inputs: Mapping[str, Any]) -> str:
        """`name/vVERSION-DIGEST`, equal for equal content of `inputs` in any process.

        Raises:
            TypeError: an input is neither JSON nor a config section, artifact or model.
        """
        content = {name: _identity(value) for name, value in {**self.removed, **inputs}.items()}
        return f"{self.name}/v{self.version}-{digest(content)}"


def _identity(value: Any) -> Any:
    if isinstance(value, Artifact | Model):
        return value.fingerprint
    if isinstance(value, BaseModel):
        return identity_of(value)
    if isinstance(value, list | tuple):
        return [_identity(item) for item in value]
    return value


def key_parameter(_context: TaskRunContext, parameters: dict[str, Any]) -> str:
    """The `cache_key_fn` of every stage: the key that `call_stage` computed and passed along."""
    key: str = parameters["key"]
    return key


async def is_crash(_task: Any, _task_run: Any, state: State[Any]) -> bool:
    """The `retry_condition_fn` of every stage: crashes are retried, explained failures are not.

    A coroutine function, since `State.result` is a coroutine inside async tasks and a value inside others. Prefect
    silently ignores callables that are no functions here.
    """
    error = await state.aresult(raise_on_failure=False)
    return isinstance(error, TrainingKilled) or not isinstance(error, StillhouseError)


CACHED_STAGE: dict[str, Any] = {
    "cache_key_fn": key_parameter,
    "persist_result": True,
    "result_serializer": "json",
    "cache_result_in_memory": False,
    "retries": 2,
    "retry_delay_seconds": [5, 30],
    "retry_condition_fn": is_crash,
}
"""Options of every stage's task."""


def call_stage(stage: Stage, task: Task[..., Any], run: Run, *, label: str | None = None, **inputs: Any) -> Any:
    """Returns the stage's result, from the cache if it is there and intact, and records the stage in the run.

    Args:
        stage: names the cache entry.
        task: takes `inputs`, `key` and `context`; returns an `Artifact` or a model that holds some.
        run: the flow run this belongs to.
        label: name under which the run records it, where a stage runs more than once; None takes the stage's.
        inputs: what the result depends on; all of it enters the key.
    """
    started = time.monotonic()
    task = task.with_options(task_run_name=label or stage.name)
    result, cached = load_or_run(stage, task, run, **inputs)
    run.record_stage(label or stage.name, result, cached=cached, seconds=time.monotonic() - started)
    return result


def load_or_run(stage: Stage, task: Task[..., Any], run: Run, **inputs: Any) -> tuple[Any, bool]:
    """Returns the stage's result and whether it came from the cache. Unlike `call_stage`, it records nothing."""
    store, key = run.context.store, stage.key(inputs)
    arguments = {**inputs, "key": key, "context": run.context}
    uploaded = download_record(store, key)
    state = _with_cache(task, stage, run)(**arguments, return_state=True)
    result = with_local_paths(state.result(), store)
    if _discard_damaged(state, result, stage, run):
        uploaded = None
        state = _with_cache(task, stage, run, refresh=True)(**arguments, return_state=True)
        result = with_local_paths(state.result(), store)
    upload_result(result, key, uploaded, store)
    return result, state.name == _CACHED


async def run_in_process(task: Task[..., Any], arguments: dict[str, Any]) -> State[Any]:
    """Runs an asynchronous task in this process: the `RunTask` of those that need no other."""
    state: State[Any] = await task(**arguments, return_state=True)
    return state


async def load_or_run_async(
    stage: Stage, task: Task[..., Any], run: Run, inputs: Mapping[str, Any], run_task: RunTask = run_in_process
) -> tuple[Artifact, bool]:
    """As `load_or_run`, for a task that is a coroutine function."""
    store, key = run.context.store, stage.key(inputs)
    arguments = {**inputs, "key": key, "context": run.context}
    uploaded = await asyncio.to_thread(download_record, store, key)
    state = await run_task(_with_cache(task, stage, run), arguments)
    artifact: Artifact = with_local_paths(await state.aresult(), store)
    if _discard_damaged(state, artifact, stage, run):
        uploaded = None
        state = await run_task(_with_cache(task, stage, run, refresh=True), arguments)
        artifact = with_local_paths(await state.aresult(), store)
    await asyncio.to_thread(upload_result, artifact, key, uploaded, store)
    return artifact, state.name == _CACHED


def find_cached(stage: Stage, run: Run, inputs: Mapping[str, Any], *, ignore_refresh: bool = False) -> Artifact | None:
    """Returns the cached artifact for `inputs`, without a task run, which costs Prefect 40 ms even when cached.

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
    artifact = with_local_paths(results.read(key).result, store)
    if (problem := _find_damage(artifact, run)) is not None or not isinstance(artifact, Artifact):
        _logger.warning("%s: a stored result cannot be used: %s; it is made again", stage.name, problem)
        return None
    upload_result(artifact, key, uploaded, store)
    return artifact


def _with_cache(task: Task[..., Any], stage: Stage, run: Run, *, refresh: bool = False) -> Task[..., Any]:
    """The task with its results in the run's store, reading the cache unless `refresh` or the config says not to."""
    return task.with_options(
        result_storage=results_folder(run.context.store),
        refresh_cache=refresh or stage.name in run.context.runtime.refresh,
    )


def _find_damage(result: Any, run: Run) -> str | None:
    """Why the files of a result cannot be used, or None. Files that only other machines have are downloaded first."""
    if next(artifacts_in(result), None) is None:
        return "its record names no artifact"
    return next(filter(None, map(run.context.store.obtain, artifacts_in(result))), None)


def _discard_damaged(state: State[Any], result: Any, stage: Stage, run: Run) -> bool:
    """Whether a cached result cannot be used, which is logged; it is removed from the storage that machines share."""
    problem = _find_damage(result, run) if state.name == _CACHED else None
    if problem is None:
        return False
    _logger.warning("%s: the cached result cannot be used: %s; running the stage again", stage.name, problem)
    for artifact in artifacts_in(result):
        run.context.store.forget(artifact)
    return True
