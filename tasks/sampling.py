"""Sampling trajectories from a model: what rollouts, evaluation, difficulty and judging have in common."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

from stillhouse.config import ModelRole, RolloutsConfig, TeacherConfig, ToolsConfig
from stillhouse.errors import ConfigError, EndpointError, FailureBudgetExceeded
from stillhouse.inference.batch import BatchClient, batch_controller
from stillhouse.inference.budget import require_prices, shared_budget
from stillhouse.inference.first_question import forget
from stillhouse.inference.journal import Journal
from stillhouse.inference.journal.parts import used
from stillhouse.rollouts.collector import RolloutCollector
from stillhouse.rollouts.context import rollout_keys
from stillhouse.rollouts.plan import EverySample, Plan
from stillhouse.rollouts.summary import summarise
from stillhouse.tools import Toolbox
from stillhouse.types import JsonObject, Message, Model, Prompt, StopReason, Trajectory
from tasks.cache.journal import journal_of
from tasks.first_question import ask_first
from tasks.models import endpoint_of
from tasks.run.context import RunContext
from tasks.run.interruption import stopped_by_pause
from tasks.run.keys import find_keys
from tasks.run.progress import PartProgress, progress

TRAJECTORIES_FILE = "trajectories.jsonl"
_FORMER_TEMPERATURES: Final = {ModelRole.TEACHER: 0.7, ModelRole.JUDGE: 0.0}
"""Defaults of older versions, in the keys of their answers."""
_MAX_LOOKED_UP: Final = 64  # prompts


@dataclass(frozen=True, slots=True)
class Sampled:
    """The trajectories of a set of prompts, in the order of prompts and samples, and their summary."""

    trajectories: list[Trajectory]
    facts: JsonObject


async def sample(
    prompts: list[Prompt],
    model: Model,
    config: RolloutsConfig,
    tools: ToolsConfig,
    context: RunContext,
    *,
    stage: str,
    part: str,
    teacher: TeacherConfig | None = None,
    role: ModelRole = ModelRole.TEACHER,
    metadata: Mapping[str, JsonObject] = MappingProxyType({}),
    plan: Plan | None = None,
    on_trajectory: Callable[[Trajectory], object] | None = None,
    read: Callable[[Message], Message] | None = None,
) -> Sampled:
    """Sample all trajectories of `prompts`, failed ones included; completions in the journal are not requested again.

    Progress is shown under `stage`; `part` identifies this collection in the run, also when it runs again. A model
    without the section `teacher`, a student, costs nothing and is served here. `metadata` is by prompt id; a `plan`
    says which rollouts to start in place of `config.num_samples` of each prompt. Raises ConfigError if the budget needs
    a price that is unknown, or answers of an older version would be paid for again; EndpointError or
    AuthenticationError if the endpoint cannot be used; BudgetReached if the run's budget is spent.
    """
    # Created first, since a model that has to be loaded takes a while.
    is_local = teacher is None or teacher.base_url is None
    watcher = PartProgress(stage, part, len(prompts) * config.num_samples, is_local=is_local)
    await asyncio.to_thread(find_keys, context.variables)
    async with AsyncExitStack() as opened:
        endpoint = await opened.enter_async_context(endpoint_of(model, teacher, context.runtime, role))
        started = time.monotonic()
        budget = None
        if teacher is not None:
            require_prices(endpoint, context.budget)
            budget = shared_budget(context.run_id, part, context.budget, endpoint.price)
        runtime = context.runtime
        if context.journal_part is not None:
            await opened.enter_async_context(used(Path(context.journal_part)))
        batches: BatchClient | None = None
        if teacher is not None and teacher.batch:
            batches = BatchClient(endpoint, context.store.root / "batches")
            # After the journal has its completions: only then may it forget which batch holds them.
            opened.push_async_callback(batches.aclose)
            runtime = runtime.model_copy(update={"hedge": False})
        toolbox, journal = Toolbox.from_config(tools), await opened.enter_async_context(journal_of(context))
        if not is_local and config.temperature is None:
            former = config.model_copy(update={"temperature": _FORMER_TEMPERATURES[role]})
            keys = rollout_keys(prompts[:_MAX_LOOKED_UP], former, toolbox, endpoint.identity, metadata)
            _check_unpaid(keys, journal, role)
        collector = RolloutCollector(
            plan or EverySample(prompts, config.num_samples),
            endpoint=endpoint,
            config=config,
            toolbox=toolbox,
            journal=journal,
            runtime=runtime,
            progress=watcher.show,
            budget=budget,
            metadata=metadata,
            transport=batches,
            read=read,
            controller=None if batches is None else batch_controller(),
            ready=None if is_local else partial(ask_first, context),
        )
        trajectories = []
        try:
            async with aclosing(collector), stopped_by_pause(collector.stop):
                async for trajectory in collector:
                    trajectories.append(trajectory)
                    progress().show_trajectory(stage, trajectory)
                    if on_trajectory is not None:
                        on_trajectory(trajectory)
        except EndpointError:
            forget(endpoint, context.runtime)
            raise
        seconds = time.monotonic() - started
    position = {prompt.id: index for index, prompt in enumerate(prompts)}
    trajectories.sort(key=lambda trajectory: (position[trajectory.prompt_id], trajectory.sample_index))
    stats = collector.stats.as_facts()
    requests: JsonObject = {
        name: stats[name] for name in ("requests", "copies", "rate_limited", "cut_tool_results", "possible_usd")
    }
    return Sampled(trajectories, {**summarise(trajectories), **requests, "seconds": seconds})


def _check_unpaid(keys: Iterable[str], journal: Journal, role: ModelRole) -> None:
    """Raise ConfigError if the journal holds answers from when a temperature that is not set had a default."""
    if any(map(journal.has_trajectory, keys)):
        setting = "rollouts.temperature" if role is ModelRole.TEACHER else "dataset.judge.temperature"
        raise ConfigError(
            f"{setting} is not set, and the store holds answers to these prompts from when its default was "
            f"{_FORMER_TEMPERATURES[role]:g}. Set it to that to use them, or name another runtime.store to pay for all "
            "of them again"
        )


def check_failures(sampled: Sampled, budget: float) -> None:
    """Check that at most the share `budget` of the trajectories failed.

    Call it before an artifact is written: without one, the next run samples the failed rollouts again and takes the
    others from the journal. Raises FailureBudgetExceeded if more failed.
    """
    # An answer that misses its schema is the model's own failure; the dataset drops it.
    failed = [trajectory for trajectory in sampled.trajectories if trajectory.stop_reason is StopReason.ERROR]
    errors = [trajectory.error for trajectory in failed if trajectory.error is not None]
    if len(errors) <= budget * len(sampled.trajectories):
        return
    (kind, message), _ = Counter((error["kind"], error["message"]) for error in errors).most_common(1)[0]
    raise FailureBudgetExceeded(
        f"{len(errors)} of {len(sampled.trajectories)} rollouts failed, more than the runtime.failure_budget of "
        f"{budget:.0%}. Most often: {kind}: {message}. Mend the cause and run the same command again: those that "
        "finished are kept, only the failed ones are asked again"
    )
