"""Shards of rollouts in processes of their own: Ray workers, or flow runs of a deployment.

Shards in one process share rate limits, the run's budget and the journal. Separate processes share none of it, so each
shard gets a share before it starts: an equal share of the limits, and of the budget in proportion to its prompts. The
run then keeps within every cap, whatever its shards do; a shard with expensive prompts may use up its share while the
run has budget left. Each process adapts to the endpoint's rate limit by itself.
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
from tasks.cache.stage import RunTask, run_in_process
from tasks.remote.flow_run_stage import StageCall, Stopped, load_result, run_stage_on
from tasks.run.context import Run, RunContext
from tasks.run.stage import Stage

RolloutKeys = Callable[[Mapping[str, Any]], Iterator[str]]
"""Yields the keys of a shard's rollouts, given the arguments of its task."""


@contextmanager
def rollout_workers(
    stage: Stage, run: Run, uncached: Callable[[], list[Artifact]], keys: RolloutKeys, *, gpus: int
) -> Iterator[RunTask]:
    """Yield what runs the tasks of the shards: `run_in_process`, Ray workers with `gpus` each, or flow runs.

    `uncached` returns the shards without a cached result; it is called only if there is a budget to divide.
    """
    runtime = run.context.runtime
    if runtime.rollout_deployment is not None:
        # A thread for each running shard; the event loop's own are few.
        with ThreadPoolExecutor(runtime.rollout_shards) as threads:
            run_task = _in_flow_runs(runtime.rollout_deployment, stage, run, threads)
            yield _with_share_of_limits(run_task, run.context, uncached, keys)
    elif runtime.task_runner == "ray":
        from tasks.remote.ray_cluster import ray_workers

        with ray_workers(runtime, num_workers=runtime.rollout_shards, gpus=gpus) as run_task:
            yield _with_share_of_limits(run_task, run.context, uncached, keys)
    else:
        yield run_in_process


def _in_flow_runs(deployment: str, stage: Stage, run: Run, threads: Executor) -> RunTask:
    """Run each shard's task in a flow run of its own, which is cancelled with the task."""

    async def run_task(task: Task[..., Any], arguments: dict[str, Any]) -> State[Any]:
        inputs = {name: value for name, value in arguments.items() if name not in {"key", "context"}}
        stop = threading.Event()
        stage_call = await asyncio.to_thread(StageCall.of, stage, inputs, arguments["context"])
        # The context tells Prefect which flow run this is.
        work = partial(copy_context().run, run_stage_on, deployment, stage_call, stop)
        child = asyncio.get_running_loop().run_in_executor(threads, work)
        try:
            await asyncio.shield(child)
        except asyncio.CancelledError:
            stop.set()
            with suppress(Stopped):
                await child
            raise
        except TrainingError as error:  # the error of every stage in another flow run
            raise StillhouseError(str(error)) from error
        return Completed(data=await asyncio.to_thread(load_result, deployment, stage, run, inputs))

    return run_task


def share_of(context: RunContext, share: float, key: str, *, seconds: float = 0.0) -> RunContext:
    """Return the context of the shard `key`, with its part of the limits and the `share`, at most 1, of the budget.

    The `seconds` since the first shard started count against `budget.max_hours`.
    """
    runtime, budget, num_shards = context.runtime, context.budget, context.runtime.rollout_shards
    limits = {
        "concurrency": max(1, runtime.concurrency // num_shards),
        "max_concurrency": max(1, runtime.max_concurrency // num_shards),
        "max_requests_per_minute": _scaled(runtime.max_requests_per_minute, 1 / num_shards),
        "max_tokens_per_minute": _scaled(runtime.max_tokens_per_minute, 1 / num_shards),
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
            # Budgets are kept by run id: a worker that runs several shards needs one for each.
            "run_id": f"{context.run_id}-{digest(key)[:16]}",
            "runtime": runtime.model_copy(update=limits),
            "budget": BudgetConfig(**caps),
            # A worker has the teacher's key, and perhaps no other.
            "paid_models": tuple(model for model in context.paid_models if model.role == "TEACHER"),
            "journal_part": str(_parts_folder(context) / digest(key)[:16]) if _has_parts(context) else None,
        }
    )


def _with_share_of_limits(
    run_task: RunTask, context: RunContext, uncached: Callable[[], list[Artifact]], keys: RolloutKeys
) -> RunTask:
    """Give each shard its share, and merge its completions into the journal when it is done."""
    journal, started = context.store.root, time.monotonic()
    is_divided = context.budget != BudgetConfig()
    num_prompts = sum(shard.num_rows for shard in uncached()) if is_divided else 0
    for orphaned in _parts_folder(context).glob("*"):
        take_back(orphaned, journal)

    async def run_with_share(task: Task[..., Any], arguments: dict[str, Any]) -> State[Any]:
        # A shard whose cached result was lost since is not among those counted.
        share = min(1.0, arguments["shard"].num_rows / max(1, num_prompts))
        shard_context = share_of(context, share, arguments["key"], seconds=time.monotonic() - started)
        part = None if shard_context.journal_part is None else Path(shard_context.journal_part)
        if part is not None:
            lend(journal, part, keys(arguments))
        state = await run_task(task, {**arguments, "context": shard_context})
        error = await state.aresult(raise_on_failure=False)
        if part is not None and not isinstance(error, BaseException):
            take_back(part, journal)
        if isinstance(error, BudgetReached):
            raise BudgetReached(
                f"{error} (this is the part of one shard, {share:.2%} of the run's: shards that run elsewhere divide "
                "the budget by their prompts)"
            ) from error
        return state

    return run_with_share


def _has_parts(context: RunContext) -> bool:
    """Return whether each shard has its own journal: on other machines, unless object storage synchronizes them."""
    is_elsewhere = context.runtime.ray_address is not None or context.runtime.rollout_deployment is not None
    return is_elsewhere and context.store.remote is None


def _parts_folder(context: RunContext) -> Path:
    return context.store.root / "journals"


def _scaled(cap: float | None, share: float) -> float | None:
    return None if cap is None else cap * share
