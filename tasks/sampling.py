"""Asking a model for trajectories: what the rollouts stage and evaluation have in common."""

import time
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from stillhouse.config import RolloutsConfig, TeacherConfig, ToolsConfig
from stillhouse.errors import FailureBudgetExceeded
from stillhouse.inference.batch import BatchClient, batch_controller
from stillhouse.inference.budget import require_prices, shared_budget
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.journal.parts import used
from stillhouse.progress.state import RolloutWatcher
from stillhouse.rollouts.collector import RolloutCollector
from stillhouse.rollouts.plan import EverySample, Plan
from stillhouse.rollouts.summary import summarise
from stillhouse.tools import Toolbox
from stillhouse.types import JsonObject, Prompt, StopReason, Trajectory
from tasks.cache.journal import journal_of
from tasks.run.context import RunContext

TRAJECTORIES_FILE = "trajectories.jsonl"


@dataclass(frozen=True, slots=True)
class Sampled:
    """What came of a set of prompts."""

    trajectories: list[Trajectory]
    """In the order of the prompts, then of the samples, whatever order they finished in."""
    facts: JsonObject


async def sample(
    prompts: list[Prompt],
    endpoint: Endpoint,
    config: RolloutsConfig,
    tools: ToolsConfig,
    context: RunContext,
    watcher: RolloutWatcher,
    *,
    part: str,
    teacher: TeacherConfig | None = None,
    metadata: Mapping[str, JsonObject] = MappingProxyType({}),
    plan: Plan | None = None,
) -> Sampled:
    """All trajectories of `prompts`, failed ones included; what the journal of the store holds is not asked again.

    Args:
        prompts: of one shard, or of an evaluation.
        endpoint: who is asked.
        config: what is sampled.
        tools: what may be called.
        context: of the run.
        watcher: told how things stand.
        part: names this collection among those of the run; the same when it runs again.
        teacher: its section where `endpoint` is the teacher's, so that the run's budget holds; students cost nothing.
        metadata: of prompts, by their ids.
        plan: what is started; None starts `config.num_samples` rollouts of each prompt.
    """
    started = time.monotonic()
    budget = None
    if teacher is not None:
        require_prices(endpoint, context.budget, config)
        budget = shared_budget(context.run_id, part, context.budget, endpoint.price)
    async with AsyncExitStack() as opened:
        runtime = context.runtime
        if context.journal_part is not None:
            await opened.enter_async_context(used(Path(context.journal_part)))
        client: BatchClient | None = None
        if teacher is not None and teacher.batch:
            client = BatchClient(endpoint, context.store.root / "batches")
            # After the journal has its answers: only then may it forget which batch holds them.
            opened.push_async_callback(client.aclose)
            runtime = runtime.model_copy(update={"hedge": False})
        collector = RolloutCollector(
            plan or EverySample(prompts, config.num_samples),
            endpoint=endpoint,
            config=config,
            toolbox=Toolbox.from_config(tools),
            journal=await opened.enter_async_context(journal_of(context)),
            runtime=runtime,
            progress=watcher,
            budget=budget,
            metadata=metadata,
            client=client,
            controller=None if client is None else batch_controller(),
        )
        async with aclosing(collector):
            trajectories = [trajectory async for trajectory in collector]
    place = {prompt.id: index for index, prompt in enumerate(prompts)}
    trajectories.sort(key=lambda trajectory: (place[trajectory.prompt_id], trajectory.sample_index))
    asked = {name: value for name, value in collector.stats.as_facts().items() if name in {"requests", "rate_limited"}}
    return Sampled(trajectories, {**summarise(trajectories), **asked, "seconds": time.monotonic() - started})


def check_failures(sampled: Sampled, budget: float) -> None:
    """Lets a set of trajectories pass if few enough of them failed.

    Raises:
        FailureBudgetExceeded: too many did. Call this before an artifact is written: without one, the next run owes
            the failed rollouts and takes the others from the journal.
    """
    # An answer that misses its schema is the model's and no failure to get one; the dataset drops it.
    failed = [trajectory for trajectory in sampled.trajectories if trajectory.stop_reason is StopReason.ERROR]
    errors = [trajectory.error for trajectory in failed if trajectory.error is not None]
    if len(errors) <= budget * len(sampled.trajectories):
        return
    (kind, message), _ = Counter((error["kind"], error["message"]) for error in errors).most_common(1)[0]
    raise FailureBudgetExceeded(
        f"{len(errors)} of {len(sampled.trajectories)} rollouts failed, more than the failure_budget of {budget:.0%}. "
        f"Most often: {kind}: {message}. Mend the cause and run the same command again: those that finished are kept, "
        "only the failed ones are asked again"
    )
