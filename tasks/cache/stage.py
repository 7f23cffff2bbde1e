"""When a stage's result may be used again, and how that is checked.

A key is stage name / explicit version / digest of the stage's own config section and its inputs' fingerprints.
Prefect's own policies are not used: INPUTS does not know which task it belongs to, and TASK_SOURCE sees a changed
comment but not a changed helper. The version is bumped by hand when a stage's behaviour changes.

Prefect returns a cached manifest without looking at the files it names; `call_stage` looks, and runs the stage again
when they are gone or altered. What is at hand of a stage with many shards is found without Prefect: a task run that
ends as cached costs it 40 ms.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from prefect import Task
from prefect.context import TaskRunContext
from prefect.filesystems import LocalFileSystem
from prefect.results import ResultStore
from prefect.states import State
from pydantic import BaseModel

from stillhouse.config import StageName
from stillhouse.errors import StillhouseError, TrainingKilled
from stillhouse.store import digest
from stillhouse.types import Artifact, Model
from tasks.cache.results import artifacts_in, fetch_record, here, results_folder, share
from tasks.run.context import Run

SHARDS_AT_ONCE: Final = 4
"""Shards that ask a remote endpoint at the same time; they share its limits."""

Call = Callable[[Task[..., Any], dict[str, Any]], Awaitable[State[Any]]]
"""Runs a task with arguments, somewhere, and gives its final state."""

_logger = logging.getLogger("stillhouse.caching")


@dataclass(frozen=True)
class Stage:
    """A stage's name and the version of its behaviour."""

    name: StageName
    version: int

    def key(self, inputs: Mapping[str, Any]) -> str:
        """`name/vVERSION-DIGEST`, equal for equal content of `inputs` in any process.

        Raises:
            TypeError: an input is neither JSON nor a config section, artifact or model.
        """
        content = {name: _identity(value) for name, value in inputs.items()}
        return f"{self.name}/v{self.version}-{digest(content)}"


def key_parameter(_context: TaskRunContext, parameters: dict[str, Any]) -> str:
    """Prefect's `cache_key_fn` for every stage: the key that `call_stage` computed and passed along."""
    key: str = parameters["key"]
    return key


async def is_crash(_task: Any, _task_run: Any, state: State[Any]) -> bool:
    """Prefect's `retry_condition_fn` for every stage: crashes are retried, explained failures are not.

    A coroutine function, since `State.result` is a coroutine inside async tasks and a value inside others; and a plain
    one, since Prefect silently ignores any other callable here.
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
    """The stage's result, from the cache if it is there and whole, and a line in the run's list of stages.

    Args:
        stage: names the cache entry.
        task: takes `inputs`, `key` and `context`; returns an `Artifact` or a model that holds some.
        run: the flow run this belongs to.
        label: the line's name where a stage runs more than once; None takes the stage's.
        inputs: what the result depends on; all of it enters the key.
    """
    started = time.monotonic()
    task = task.with_options(task_run_name=label or stage.name)
    result, cached = recall(stage, task, run, **inputs)
    run.note_stage(label or stage.name, result, cached=cached, seconds=time.monotonic() - started)
    return result


def recall(stage: Stage, task: Task[..., Any], run: Run, **inputs: Any) -> tuple[Any, bool]:
    """As `call_stage`, without a line in the list of stages: the result, and whether it came from the cache."""
    arguments = arguments_of(stage, run, inputs)
    shared = fetch_record(run.context.store, arguments["key"])
    state = configured(task, stage, run)(**arguments, return_state=True)
    result = here(state.result(), run.context.store)
    if was_cached(state) and (problem := find_problem(result, run)):
        give_up(stage, result, problem, run)
        shared = None
        state = configured(task, stage, run, refresh=True)(**arguments, return_state=True)
        result = here(state.result(), run.context.store)
    share(result, arguments["key"], shared, run.context.store)
    return result, was_cached(state)


async def call_here(task: Task[..., Any], arguments: dict[str, Any]) -> State[Any]:
    """Runs an asynchronous task in this process."""
    state: State[Any] = await task(**arguments, return_state=True)
    return state


async def recall_shards(
    stage: Stage,
    task: Task[..., Any],
    run: Run,
    shards: Sequence[Artifact],
    *,
    heard: Callable[[Artifact, bool], None],
    own_inputs: Callable[[Artifact], Mapping[str, Any]] = lambda shard: {},
    at_once: int = SHARDS_AT_ONCE,
    call: Call = call_here,
    **inputs: Any,
) -> list[tuple[Artifact, bool]]:
    """What `recall` gives for each shard, several at once. A failed shard is raised once the others are done.

    Args:
        stage: names the cache entries.
        task: a coroutine function that takes `shard` on top of what `call_stage` says.
        run: the flow run this belongs to.
        shards: one by one the task's `shard`.
        heard: told of each result, and whether it came from the cache.
        own_inputs: what a shard's result depends on beside `inputs` and the shard itself.
        at_once: how many may be under way.
        call: runs the task of one shard.
        inputs: what all results depend on.
    """
    places = asyncio.Semaphore(at_once)

    async def one(shard: Artifact) -> tuple[Artifact, bool]:
        own = {"shard": shard, **own_inputs(shard), **inputs}
        artifact, cached = await _at_hand_off_loop(stage, run, own), True
        if artifact is None:
            async with places:
                artifact, cached = await recall_shard(stage, task, run, own, call)
        heard(artifact, cached)
        return artifact, cached

    results = await asyncio.gather(*map(one, shards), return_exceptions=True)
    collected = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        collected.append(result)
    return collected


def at_hand(stage: Stage, run: Run, inputs: Mapping[str, Any]) -> Artifact | None:
    """What an earlier run made of `inputs`, read without a task run; None where it is gone, altered or not wanted."""
    if stage.name in run.context.runtime.refresh:
        return None
    store = run.context.store
    results = ResultStore(result_storage=LocalFileSystem(basepath=str(results_folder(store))))
    key = stage.key(inputs)
    shared = fetch_record(store, key)
    if not results.exists(key):
        return None
    artifact = here(results.read(key).result, store)
    if (problem := find_problem(artifact, run)) is not None or not isinstance(artifact, Artifact):
        _logger.warning("%s: a result at hand cannot be used: %s; running its shard again", stage.name, problem)
        return None
    share(artifact, key, shared, store)
    return artifact


async def _at_hand_off_loop(stage: Stage, run: Run, inputs: Mapping[str, Any]) -> Artifact | None:
    """As `at_hand`, which waits for a network where the store is behind one."""
    if run.context.store.remote is None:
        return at_hand(stage, run, inputs)
    return await asyncio.to_thread(at_hand, stage, run, inputs)


async def recall_shard(
    stage: Stage, task: Task[..., Any], run: Run, inputs: Mapping[str, Any], call: Call = call_here
) -> tuple[Artifact, bool]:
    """As `recall`, for a task that is a coroutine function."""
    arguments = arguments_of(stage, run, inputs)
    shared = await asyncio.to_thread(fetch_record, run.context.store, arguments["key"])
    state = await call(configured(task, stage, run), arguments)
    artifact: Artifact = here(await state.aresult(), run.context.store)
    if was_cached(state) and (problem := find_problem(artifact, run)):
        give_up(stage, artifact, problem, run)
        shared = None
        state = await call(configured(task, stage, run, refresh=True), arguments)
        artifact = here(await state.aresult(), run.context.store)
    await asyncio.to_thread(share, artifact, arguments["key"], shared, run.context.store)
    return artifact, was_cached(state)


def arguments_of(stage: Stage, run: Run, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What a stage's task is called with."""
    return {**inputs, "key": stage.key(inputs), "context": run.context}


def configured(task: Task[..., Any], stage: Stage, run: Run, *, refresh: bool = False) -> Task[..., Any]:
    """The task with its results under the run's store, reading the cache unless `refresh` or the config says not to."""
    return task.with_options(
        result_storage=results_folder(run.context.store),
        refresh_cache=refresh or stage.name in run.context.runtime.refresh,
    )


def was_cached(state: State[Any]) -> bool:
    """Whether Prefect took the result from its cache."""
    return state.name == "Cached"


def find_problem(result: Any, run: Run) -> str | None:
    """Why the files behind a result cannot be used, or None. Those that only other machines have are fetched first."""
    if next(artifacts_in(result), None) is None:
        return "its record names no artifact"
    return next(filter(None, map(run.context.store.obtain, artifacts_in(result))), None)


def give_up(stage: Stage, result: Any, problem: str, run: Run) -> None:
    """Says why a cached result is not used, and keeps other machines from it."""
    _logger.warning("%s: the cached result cannot be used: %s; running the stage again", stage.name, problem)
    for artifact in artifacts_in(result):
        run.context.store.forget(artifact)


def _identity(value: Any) -> Any:
    if isinstance(value, Artifact | Model):
        return value.fingerprint
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, list | tuple):
        return [_identity(item) for item in value]
    return value
