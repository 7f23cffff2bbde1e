"""Shards of rollouts in processes of their own: the workers of a Ray cluster, or runs of a deployment.

Shards in one process share the limits they learn of an endpoint, the run's budget and the journal. Processes share none
of it, so each shard is given its part before it starts: an equal one of the limits, since so many run at once, and of
the budget what its prompts are of all that are owed. No cap of the run can then be passed, whatever the shards do; one
whose prompts are dearer than the others' may reach its part of the budget while the run has some left. What an endpoint
refuses each process finds out for itself.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any

from prefect import Task
from prefect.states import Completed, State

from stillhouse.config import BudgetConfig
from stillhouse.errors import BudgetReached, StillhouseError, TrainingError
from stillhouse.inference.journal.parts import lend, take_back
from stillhouse.store import digest
from stillhouse.types import Artifact
from tasks.cache.stage import Call, Stage, call_here
from tasks.remote.flow_run_stage import StageCall, Stopped, made_elsewhere, run_in
from tasks.run.context import Run, RunContext

RolloutKeys = Callable[[Mapping[str, Any]], Iterator[str]]
"""The keys of the rollouts of a shard, by the arguments of its task."""


@contextmanager
def rollout_workers(
    stage: Stage, run: Run, owed: Callable[[], list[Artifact]], keys: RolloutKeys, *, gpus: int
) -> Iterator[Call]:
    """What runs the shards' tasks: `call_here`, or something that runs them elsewhere.

    Args:
        stage: of the rollouts.
        run: the flow run.
        owed: the shards whose results are not at hand; called only where there is a budget to divide among them.
        keys: of the rollouts of a shard.
        gpus: that a shard needs, for a teacher that this project serves itself.
    """
    runtime = run.context.runtime
    if runtime.rollout_deployment is not None:
        # A thread for each that is under way; those of the event loop are few.
        with ThreadPoolExecutor(runtime.rollout_shards) as threads:
            call = _flow_runs_of(runtime.rollout_deployment, stage, run, threads)
            yield _Parted(call, run.context, owed, keys)
    elif runtime.task_runner == "ray":
        from tasks.remote.ray_cluster import ray_workers

        with ray_workers(runtime, num_workers=runtime.rollout_shards, gpus=gpus) as call:
            yield _Parted(call, run.context, owed, keys)
    else:
        yield call_here


def _flow_runs_of(deployment: str, stage: Stage, run: Run, threads: Executor) -> Call:
    """Runs each shard's task in a flow run of its own, which is cancelled when nobody waits for it any more."""

    async def call(task: Task[..., Any], arguments: dict[str, Any]) -> State[Any]:
        inputs = {name: value for name, value in arguments.items() if name not in {"key", "context"}}
        stop = threading.Event()
        wanted = StageCall.of(stage, inputs, arguments["context"])
        # With the context that tells Prefect which flow run this is.
        work = partial(copy_context().run, run_in, deployment, wanted, stop)
        child = asyncio.get_running_loop().run_in_executor(threads, work)
        try:
            await asyncio.shield(child)
        except asyncio.CancelledError:
            stop.set()
            with suppress(Stopped):
                await child
            raise
        except TrainingError as error:  # what a stage in another flow run ends with, whatever it does
            raise StillhouseError(str(error)) from error
        return Completed(data=await asyncio.to_thread(made_elsewhere, deployment, stage, run, inputs))

    return call


def part_of(context: RunContext, share: float, key: str, *, seconds: float = 0.0) -> RunContext:
    """What one shard is told of its run, with its part of the limits and of the budget.

    Args:
        context: of the run.
        share: of the budget that is the shard's, at most 1.
        key: of the shard.
        seconds: since the first shard was started, which are gone from the wall time of all.
    """
    runtime, budget, at_once = context.runtime, context.budget, context.runtime.rollout_shards
    limits = {
        "concurrency": max(1, runtime.concurrency // at_once),
        "max_concurrency": max(1, runtime.max_concurrency // at_once),
        "max_requests_per_minute": _scaled(runtime.max_requests_per_minute, 1 / at_once),
        "max_tokens_per_minute": _scaled(runtime.max_tokens_per_minute, 1 / at_once),
    }
    caps: dict[str, Any] = {
        "max_usd": _scaled(budget.max_usd, share),
        "max_tokens": None if budget.max_tokens is None else int(budget.max_tokens * share),
        "max_requests": None if budget.max_requests is None else int(budget.max_requests * share),
        "max_hours": None if budget.max_hours is None else budget.max_hours - seconds / 3600,
    }
    for name, cap in caps.items():
        if cap is not None and cap < (1 if isinstance(cap, int) else 1e-9):
            raise BudgetReached(
                f"budget.{name} = {getattr(budget, name)}: nothing of it is left for a shard that is {share:.2%} of "
                "the run. Raise it, and run the same command again: finished shards are kept"
            )
    return context.model_copy(
        update={
            # A worker that runs several shards would find the budget of the first by the run's own name.
            "run_id": f"{context.run_id}-{digest(key)[:16]}",
            "runtime": runtime.model_copy(update=limits),
            "budget": BudgetConfig(**caps),
            "journal_part": _journal_part(context, key),
        }
    )


class _Parted:
    """A `Call` that gives each shard its part, and its answers to the journal when it is done."""

    def __init__(self, call: Call, context: RunContext, owed: Callable[[], list[Artifact]], keys: RolloutKeys) -> None:
        self._call = call
        self._context = context
        is_divided = context.budget != BudgetConfig()
        self._num_prompts = sum(shard.num_rows for shard in owed()) if is_divided else 0
        self._keys = keys
        self._started = time.monotonic()
        self._journal = context.store.root
        for left_behind in _parts_folder(context).glob("*"):
            take_back(left_behind, self._journal)

    async def __call__(self, task: Task[..., Any], arguments: dict[str, Any]) -> State[Any]:
        shard: Artifact = arguments["shard"]
        # One that was at hand a moment ago and is not any more is in no sum.
        share = min(1.0, shard.num_rows / max(1, self._num_prompts))
        context = part_of(self._context, share, arguments["key"], seconds=time.monotonic() - self._started)
        if context.journal_part is not None:
            lend(self._journal, Path(context.journal_part), self._keys(arguments))
        state = await self._call(task, {**arguments, "context": context})
        error = await state.aresult(raise_on_failure=False)
        if context.journal_part is not None and not isinstance(error, BaseException):
            take_back(Path(context.journal_part), self._journal)
        if isinstance(error, BudgetReached):
            raise BudgetReached(
                f"{error} (this is the part of one shard, {share:.2%} of the run's: shards that run elsewhere divide "
                "the budget by their prompts)"
            ) from error
        return state


def _journal_part(context: RunContext, key: str) -> str | None:
    """Workers on this machine use the store's journal; where the store is object storage, each machine has its own."""
    runtime = context.runtime
    is_on_this_machine = runtime.ray_address is None and runtime.rollout_deployment is None
    if is_on_this_machine or context.store.remote is not None:
        return None
    return str(_parts_folder(context) / digest(key)[:16])


def _parts_folder(context: RunContext) -> Path:
    return context.store.root / "journals"


def _scaled(cap: float | None, share: float) -> float | None:
    return None if cap is None else cap * share
