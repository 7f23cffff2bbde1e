"""Difficulty: how hard rows are for the student before it is trained."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stillhouse.config import DistillConfig, RolloutsConfig, ToolsConfig
from stillhouse.dataset.difficulty import (
    pass_rates,
    student_prompts,
    student_rollouts,
    student_scorer,
    write_difficulty,
)
from stillhouse.dataset.schema import DIFFICULTY_FILE
from stillhouse.store import digest
from stillhouse.store.records import read_metadata, read_trajectories
from stillhouse.tools import Toolbox
from stillhouse.types import Artifact, JsonObject, Model, Trajectory
from tasks.cache.shards import measure_shards
from tasks.models import base_student
from tasks.prompts import metadata_file
from tasks.rollouts import Rollouts
from tasks.run.context import Run, RunContext
from tasks.run.progress import PartProgress
from tasks.run.stage import Stage
from tasks.sampling import TRAJECTORIES_FILE, check_failures, sample

DIFFICULTY = Stage(
    "difficulty",
    version=3,
    result="{rows} measured",
    when=lambda config: "student_nll" in config.dataset.measured or config.dataset.labels.student_samples > 0,
)


def measure_difficulty(rollouts: Rollouts, config: DistillConfig, run: Run) -> list[Artifact] | None:
    """Measure how hard each shard's rows are for the student; return artifacts with `DIFFICULTY_FILE`, None if off.

    Raises ConfigError if the student cannot be loaded; else as `sample` and `check_failures`.
    """
    if not DIFFICULTY.when(config):
        return None
    samples = config.dataset.labels.student_samples
    return measure_shards(
        DIFFICULTY,
        run,
        rollouts.shards,
        num_steps=("student_nll" in config.dataset.measured) + samples,
        shard_inputs=rollouts.metadata_of if samples else lambda shard: {"metadata": None},
        **_inputs(config),
    )


def _inputs(config: DistillConfig) -> dict[str, Any]:
    """Return the inputs of the stage; None for those of the half (likelihoods, pass rates) that is off."""
    samples = config.dataset.labels.student_samples
    inputs: dict[str, Any] = {
        "model": base_student(config.student),
        "max_length": config.student.max_length if "student_nll" in config.dataset.measured else None,
        **dict.fromkeys(("rollouts", "tools", "tool_schemas")),
    }
    if samples:
        inputs |= {
            "rollouts": student_rollouts(config.rollouts, samples),
            # Rewards score trajectories; sampling does not depend on them.
            "tools": config.tools.model_copy(update={"rewards_file": None}),
            "tool_schemas": digest(Toolbox.from_config(config.tools).schemas()),
        }
    return inputs


@DIFFICULTY.made_by
async def difficulty_task(
    shard: Artifact,
    model: Model,
    max_length: int | None,
    rollouts: RolloutsConfig | None,
    tools: ToolsConfig | None,
    tool_schemas: str | None,
    metadata: Artifact | None,
    key: str,
    context: RunContext,
) -> Artifact:
    """Measure one shard. The student's completions go to the journal, so a failure loses none."""
    trajectories = list(read_trajectories(Path(shard.uri) / TRAJECTORIES_FILE))
    rates: dict[str, float] = {}
    facts: JsonObject = {}
    if rollouts is not None and tools is not None and metadata is not None:
        rates, facts = await _pass_rates(trajectories, model, rollouts, tools, metadata, key, context)
    nlls: list[float | None] = [None] * len(trajectories)
    if max_length is not None:
        with student_scorer(model, context.runtime) as scorer:
            nlls = await scorer.nll(trajectories, max_length)
    measured = {"rows_scored": sum(nll is not None for nll in nlls), "prompts_rated": len(rates)}
    num_steps = (max_length is not None) + (0 if rollouts is None else rollouts.num_samples)
    PartProgress("difficulty", f"{key}/rest", len(trajectories) * num_steps - facts.get("trajectories", 0)).skip()
    rows = [(nll, rates.get(trajectory.prompt_id)) for nll, trajectory in zip(nlls, trajectories, strict=True)]
    return context.store.write(
        "difficulty",
        digest(key),
        lambda folder: (write_difficulty(folder / DIFFICULTY_FILE, rows), {**facts, **measured}),
    )


async def _pass_rates(
    trajectories: Sequence[Trajectory],
    model: Model,
    rollouts: RolloutsConfig,
    tools: ToolsConfig,
    metadata: Artifact,
    key: str,
    context: RunContext,
) -> tuple[dict[str, float], JsonObject]:
    """Return the student's pass rates by prompt id, and the summary of its rollouts."""
    prompts = student_prompts(trajectories)
    rows = read_metadata(metadata_file(metadata))
    sampled = await sample(
        list(prompts.values()),
        model,
        rollouts,
        tools,
        context,
        stage="difficulty",
        part=f"{key}/answers",
        metadata={prompt.id: rows[source].metadata for source, prompt in prompts.items() if source in rows},
    )
    check_failures(sampled, context.runtime.failure_budget)
    return pass_rates(sampled.trajectories, prompts, rows), sampled.facts
