"""Difficulty: how hard rows are for the student before it is trained. A task run is a shard of trajectories."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from prefect import task

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
from tasks.cache.shards import map_shards, record_shards
from tasks.cache.stage import CACHED_STAGE, Stage
from tasks.models import base_student, endpoint_of
from tasks.prompts import metadata_file
from tasks.rollouts import Rollouts
from tasks.run.context import Run, RunContext
from tasks.run.interruption import run_until_done
from tasks.run.progress import PartProgress, rollout_stage
from tasks.sampling import TRAJECTORIES_FILE, check_failures, sample

DIFFICULTY = Stage("difficulty", version=2)


def measure_difficulty(rollouts: Rollouts, config: DistillConfig, run: Run) -> list[Artifact] | None:
    """Measures how hard each shard's rows are for the student; returns artifacts with `DIFFICULTY_FILE`, None if off.

    Raises:
        ConfigError: the student cannot be loaded.
        EndpointError: the student cannot be served.
        FailureBudgetExceeded: more rollouts of the student failed than `rollouts.failure_budget` allows.
    """
    labels = config.dataset.labels
    if not labels.student_nll and labels.student_samples == 0:
        return None
    started = time.monotonic()
    steps = labels.student_nll + labels.student_samples

    def on_result(artifact: Artifact, cached: bool) -> None:
        if cached:
            PartProgress("difficulty", artifact.uri, artifact.num_rows * steps).skip()

    def shard_inputs(shard: Artifact) -> Mapping[str, Artifact | None]:
        return rollouts.metadata_of(shard) if labels.student_samples else {"metadata": None}

    work = map_shards(
        DIFFICULTY,
        difficulty_task,
        run,
        rollouts.shards,
        on_result=on_result,
        shard_inputs=shard_inputs,
        **_inputs(config),
    )
    with rollout_stage("difficulty", steps * sum(shard.num_rows for shard in rollouts.shards)):
        results = run_until_done(work)
    return record_shards(DIFFICULTY, results, run, seconds=time.monotonic() - started)


def _inputs(config: DistillConfig) -> JsonObject:
    """Inputs of the stage; None for those of the half (likelihoods, pass rates) that is off."""
    labels = config.dataset.labels
    inputs: JsonObject = {
        "model": base_student(config.student),
        "max_length": config.student.max_length if labels.student_nll else None,
        **dict.fromkeys(("rollouts", "tools", "tool_schemas")),
    }
    if labels.student_samples:
        inputs |= {
            "rollouts": student_rollouts(config.rollouts, labels.student_samples),
            # Rewards score trajectories; sampling does not depend on them.
            "tools": config.tools.model_copy(update={"rewards_file": None}),
            "tool_schemas": digest(Toolbox.from_config(config.tools).schemas()),
        }
    return inputs


@task(name="difficulty", **CACHED_STAGE)
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
    """Measures one shard. The student's answers go to the journal, so a failure loses none."""
    trajectories = list(read_trajectories(Path(shard.uri) / TRAJECTORIES_FILE))
    rates: dict[str, float] = {}
    facts: JsonObject = {}
    if rollouts is not None and tools is not None and metadata is not None:
        rates, facts = await _pass_rates(trajectories, model, rollouts, tools, metadata, key, context)
    nlls: list[float | None] = [None] * len(trajectories)
    if max_length is not None:
        with student_scorer(model.ref, context.runtime) as scorer:
            nlls = await scorer.nll(trajectories, max_length)
    measured = {"rows_scored": sum(nll is not None for nll in nlls), "prompts_rated": len(rates)}
    steps = (max_length is not None) + (0 if rollouts is None else rollouts.num_samples)
    PartProgress("difficulty", f"{key}/rest", len(trajectories) * steps - facts.get("trajectories", 0)).skip()
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
    """The student's pass rates by prompt id, and the summary of its rollouts."""
    prompts = student_prompts(trajectories)
    rows = read_metadata(metadata_file(metadata))
    distinct = list(prompts.values())
    part = PartProgress("difficulty", f"{key}/answers", len(distinct) * rollouts.num_samples)
    async with endpoint_of(model, None, context.runtime) as endpoint:
        by_prompt = {prompt.id: rows[source].metadata for source, prompt in prompts.items() if source in rows}
        sampled = await sample(distinct, endpoint, rollouts, tools, context, part, part=key, metadata=by_prompt)
    check_failures(sampled, rollouts.failure_budget)
    return pass_rates(sampled.trajectories, prompts, rows), sampled.facts
