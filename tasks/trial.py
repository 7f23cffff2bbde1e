"""A trial: a few rollouts of a config, scored as they end. Their completions are in the journal for later runs."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import uuid4

from stillhouse.config import DistillConfig, RolloutsConfig
from stillhouse.dataset.build import max_row_tokens
from stillhouse.dataset.labelling.label import Labelling
from stillhouse.inference.budget import forget_budgets
from stillhouse.prompts import ParsedPrompts, parse_prompts
from stillhouse.prompts.parse import split_prompts
from stillhouse.tools import RewardSet
from stillhouse.trial.preview import PreviewRow
from stillhouse.trial.rollout import ScoredRollout
from stillhouse.types import Prompt, StopReason, Trajectory
from tasks.models import teacher_model
from tasks.run.context import RunContext
from tasks.run.interruption import run_until_done
from tasks.run.keys import variables_of
from tasks.run.paid_models import paid_models
from tasks.sampling import Sampled, check_failures, sample


def run_trial(config: DistillConfig, on_rollout: Callable[[ScoredRollout], None]) -> list[ScoredRollout]:
    """Sample the teacher on all prompts of `prompts.source`, held-out ones too, without Prefect, MLflow or artifacts.

    The rollouts are returned, and given to `on_rollout` as soon as each has ended and is scored. Raises as `sample`,
    and ConfigError or InputError if prompts, tools or rewards cannot be read.
    """
    with context_of(config) as context:
        return run_until_done(
            _sample(parse_prompts(config.prompts, config.runtime.failure_budget), config, context, on_rollout)
        )


def run_preview(config: DistillConfig, num_rows: int, on_row: Callable[[PreviewRow], None]) -> list[PreviewRow]:
    """Take one rollout of each of the first `num_rows` training prompts to a row of the dataset, and return the rows.

    A run finds these rollouts in its journal. Raises StillhouseError as `run_trial`, labels and the rendering do.
    """
    # Its imports take seconds, which sampling need not wait for.
    from stillhouse.training.sft.render import Rendering

    parsed = parse_prompts(config.prompts, config.runtime.failure_budget)
    train, _ = split_prompts(parsed.prompts, config.prompts.held_out_fraction, config.prompts.split_seed)
    labelling = Labelling.of(config.dataset, tools=config.tools, student=config.student)
    max_tokens = max_row_tokens(config.dataset, config.student.max_length)
    parts = Rendering.of(config.sft, config.student.max_length).parts
    rows: list[PreviewRow] = []

    def take(trajectory: Trajectory) -> None:
        metadata = parsed.metadata.get(trajectory.prompt_id)
        rows.append(PreviewRow.of(trajectory, metadata, labelling, config.dataset, max_tokens, parts))
        on_row(rows[-1])

    with context_of(config) as context:
        rollouts = config.rollouts.model_copy(update={"num_samples": 1})
        run_until_done(_sample_teacher(train[:num_rows], parsed, config, rollouts, context, take))
    return rows


def run_few(prompts: list[Prompt], parsed: ParsedPrompts, config: DistillConfig) -> None:
    """Take one rollout of each of `prompts`, which are of `parsed`, into the journal; raise if none succeeded."""
    with context_of(config) as context:
        rollouts = config.rollouts.model_copy(update={"num_samples": 1})
        sampled = run_until_done(_sample_teacher(prompts, parsed, config, rollouts, context, lambda trajectory: None))
    if all(trajectory.stop_reason is StopReason.ERROR for trajectory in sampled.trajectories):
        check_failures(sampled, config.runtime.failure_budget)


@contextmanager
def context_of(config: DistillConfig) -> Iterator[RunContext]:
    """Yield a context without Prefect and MLflow, whose budgets end with the block."""
    context = RunContext(
        run_id=uuid4().hex,
        runtime=config.runtime,
        tracking=config.tracking,
        budget=config.budget,
        mlflow_run_id=None,
        paid_models=tuple(paid_models(config, {"rollouts"})),
        variables=variables_of(config),
    )
    context.store.make()
    try:
        yield context
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
            await _sample_teacher(
                parsed.prompts,
                parsed,
                config,
                config.rollouts,
                context,
                lambda trajectory: scoring.append(asyncio.create_task(score(trajectory))),
            )
        finally:
            await asyncio.gather(*scoring)
    return scored


async def _sample_teacher(
    prompts: list[Prompt],
    parsed: ParsedPrompts,
    config: DistillConfig,
    rollouts: RolloutsConfig,
    context: RunContext,
    on_trajectory: Callable[[Trajectory], object],
) -> Sampled:
    return await sample(
        prompts,
        teacher_model(config.teacher),
        rollouts,
        config.tools,
        context,
        stage="rollouts",
        part="trial",
        # A batch takes hours; its completions and those of single requests have the same keys.
        teacher=config.teacher.model_copy(update={"batch": False}),
        metadata={prompt: row.metadata for prompt, row in parsed.metadata.items()},
        on_trajectory=on_trajectory,
    )
