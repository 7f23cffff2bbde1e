"""A trial: a few rollouts of a config, scored as they end. Their completions are in the journal for later runs."""

import asyncio
from collections.abc import Callable
from uuid import uuid4

from stillhouse.config import DistillConfig
from stillhouse.inference.budget import forget_budgets
from stillhouse.prompts import ParsedPrompts, parse_prompts
from stillhouse.tools import RewardSet
from stillhouse.trial.rollout import ScoredRollout
from stillhouse.types import Trajectory
from tasks.models import teacher_model
from tasks.run.context import RunContext
from tasks.run.interruption import run_until_done
from tasks.sampling import sample


def run_trial(config: DistillConfig, on_rollout: Callable[[ScoredRollout], None]) -> list[ScoredRollout]:
    """Samples the teacher on all prompts of `prompts.source`, held-out ones too, without Prefect, MLflow or artifacts.

    Args:
        config: names prompts, teacher, tools and rewards.
        on_rollout: called with each rollout once it has ended and is scored.

    Returns:
        The rollouts in the order of `on_rollout`.

    Raises:
        ConfigError, InputError: prompts, tools or rewards cannot be read.
        EndpointError, AuthenticationError: the endpoint cannot be used.
        BudgetReached: the budget is spent.
    """
    context = RunContext(
        run_id=uuid4().hex,
        runtime=config.runtime,
        tracking=config.tracking,
        budget=config.budget,
        mlflow_run_id=None,
    )
    context.store.make()
    try:
        return run_until_done(_sample(parse_prompts(config.prompts), config, context, on_rollout))
    finally:
        forget_budgets(context.run_id)


async def _sample(
    parsed: ParsedPrompts, config: DistillConfig, context: RunContext, on_rollout: Callable[[ScoredRollout], None]
) -> list[ScoredRollout]:
    scored: list[ScoredRollout] = []
    scoring: list[asyncio.Task[None]] = []
    async with RewardSet.from_config(config.tools) as rewards:

        async def score(trajectory: Trajectory) -> None:
            rollout = await ScoredRollout.of(trajectory, parsed.metadata[trajectory.prompt_id], rewards)
            scored.append(rollout)
            on_rollout(rollout)

        try:
            await sample(
                parsed.prompts,
                teacher_model(config.teacher),
                config.rollouts,
                config.tools,
                context,
                stage="rollouts",
                part="trial",
                # A batch takes hours; its completions and those of single requests have the same keys.
                teacher=config.teacher.model_copy(update={"batch": False}),
                metadata={prompt: row.metadata for prompt, row in parsed.metadata.items()},
                on_trajectory=lambda trajectory: scoring.append(asyncio.create_task(score(trajectory))),
            )
        finally:
            await asyncio.gather(*scoring)
    return scored
