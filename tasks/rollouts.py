"""Rollouts: the teacher's trajectories for all training prompts, a shard at a time.

A shard is one task run. Shards in one process share an event loop and the rate limits.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

from stillhouse.config import DistillConfig, RolloutsConfig, TeacherConfig, ToolsConfig
from stillhouse.config.section import Section
from stillhouse.dataset.acceptance import Acceptance, TrajectoryFilter
from stillhouse.errors import InputError
from stillhouse.inference.batch import MAX_REQUESTS, require_batchable
from stillhouse.rollouts.context import rollout_keys
from stillhouse.rollouts.plan import UntilAccepted
from stillhouse.rollouts.summary import add_up
from stillhouse.store import digest
from stillhouse.store.records import read_metadata, read_metadata_rows, read_prompts
from stillhouse.tools import Toolbox
from stillhouse.types import Artifact, JsonObject, Model, Prompt, PromptMetadata
from tasks.cache.shards import Shards, map_shards
from tasks.cache.stage import find_cached, run_in_process
from tasks.models import teacher_model
from tasks.prompts import PromptSets, metadata_file, prompts_file, write_metadata, write_prompts
from tasks.remote.rollout_workers import rollout_workers
from tasks.run.context import Run, RunContext
from tasks.run.graph import made_of
from tasks.run.interruption import run_until_done
from tasks.run.progress import PartProgress, progress, rollout_stage
from tasks.run.stage import Stage
from tasks.sampling import TRAJECTORIES_FILE, check_failures, sample

ROLLOUTS = Stage("rollouts", version=3, result="{trajectories} done, {failed} failed", is_remote=True)


class Rollouts(Shards):
    """The trajectories of all training prompts."""

    metadata: tuple[Artifact, ...]
    """Of the prompts of each shard, so that a changed expected answer affects its own shard alone."""
    sampling: str | None
    """Hash of teacher, sampling and tools; None for trajectories that were sampled elsewhere."""

    def metadata_of(self, shard: Artifact) -> dict[str, Artifact]:
        """Return the input `metadata` for one shard, as `map_shards` takes it."""
        return {"metadata": self._metadata_by_uri[shard.uri]}

    @cached_property
    def _metadata_by_uri(self) -> dict[str, Artifact]:
        return {shard.uri: metadata for shard, metadata in zip(self.shards, self.metadata, strict=True)}


class ShardTarget(Section):
    """Number of accepted trajectories to sample in one shard, where the dataset has a target."""

    rows: int
    max_candidates: int | None
    """Most rollouts; None leaves it to `rollouts.num_samples`."""
    per_prompt: int | None
    """Most accepted trajectories of one prompt."""
    acceptance: Acceptance


def sample_teacher(
    prompts: PromptSets,
    config: DistillConfig,
    run: Run,
    *,
    wanted: Callable[[list[Artifact]], list[ShardTarget]] | None = None,
) -> Rollouts:
    """Sample the teacher on the training prompts, as the sections `teacher`, `rollouts` and `tools` say.

    `wanted` returns the target of each shard of prompts; None samples everything. Raises ConfigError if `teacher.batch`
    is set together with a setting that batch endpoints do not support; InputError if all prompts are held out;
    FailureBudgetExceeded if more rollouts of a shard failed than the config allows; EndpointError if the endpoint
    cannot be used.
    """
    if prompts.train.num_rows == 0:
        raise InputError(
            f"prompts.held_out_fraction = {config.prompts.held_out_fraction}: all {prompts.held_out.num_rows} prompts "
            "are held out for evaluation, and none is left to sample. Lower it, or give more prompts"
        )
    require_batchable(config.teacher, config.rollouts, config.tools)
    started = time.monotonic()
    toolbox = Toolbox.from_config(config.tools)
    inputs = {
        "model": teacher_model(config.teacher),
        "teacher": config.teacher,
        # A shard does not depend on the number of shards.
        "rollouts": config.rollouts.model_copy(update={"max_prompts": None}),
        # Rewards score trajectories; sampling does not depend on them.
        "tools": config.tools.model_copy(update={"rewards_file": None}),
        "tool_schemas": digest(toolbox.schemas()),
    }
    shards, metadata = _write_shards(prompts, config, run)
    targets = [None] * len(shards) if wanted is None else wanted(shards)
    # A changed expected answer makes new rollouts only if a tool or a filter reads it.
    sampling_metadata = metadata if toolbox.takes_context or wanted else [None] * len(shards)
    shard_inputs = {
        shard.fingerprint: {"wanted": target, "metadata": rows}
        for shard, target, rows in zip(shards, targets, sampling_metadata, strict=True)
    }
    total = config.rollouts.num_samples * sum(shard.num_rows for shard in shards)
    with rollout_stage("rollouts", total):
        results = _sample_shards(shards, shard_inputs, inputs, run)
    collected = Rollouts(
        shards=tuple(shard for shard, _ in results),
        metadata=tuple(metadata),
        sampling=_sampling_digest(inputs),
        facts=add_up([shard.facts for shard, _ in results]),
    )
    cached = all(cached for _, cached in results)
    run.record_stage(ROLLOUTS, collected, cached=cached, seconds=time.monotonic() - started, inputs=[prompts])
    return collected


def _write_shards(prompts: PromptSets, config: DistillConfig, run: Run) -> tuple[list[Artifact], list[Artifact]]:
    """Write shards of nearly equal size, each named by its prompts, and the metadata of each shard's prompts."""
    rollouts = config.rollouts
    num_prompts = min(prompts.train.num_rows, rollouts.max_prompts or prompts.train.num_rows)
    shard_size = run.context.runtime.shard_size
    if config.teacher.batch:
        # A batch takes hours whatever its size.
        shard_size = max(1, MAX_REQUESTS // rollouts.num_samples)
    num_shards = -(-num_prompts // shard_size)
    # Both files have a row for each prompt, in the same order.
    rows = zip(
        read_prompts(prompts_file(prompts.train)),
        read_metadata_rows(metadata_file(prompts.train_metadata)),
        strict=True,
    )
    shards, metadata = [], []
    for index in range(num_shards):
        size = num_prompts * (index + 1) // num_shards - num_prompts * index // num_shards
        part = list(islice(rows, size))
        shard = write_prompts(run.context.store, [prompt for prompt, _ in part], "shards")
        shards.append(made_of([prompts.train], shard))
        metadata.append(write_metadata(run.context.store, [row for _, row in part]))
    return shards, metadata


def _sample_shards(
    shards: list[Artifact], shard_inputs: Mapping[str, JsonObject], inputs: JsonObject, run: Run
) -> list[tuple[Artifact, bool]]:
    """Return each shard's trajectories and whether they were cached; `shard_inputs` are by fingerprint."""

    def uncached() -> list[Artifact]:
        candidates = ((shard, {"shard": shard, **shard_inputs[shard.fingerprint], **inputs}) for shard in shards)
        return [shard for shard, all_inputs in candidates if find_cached(ROLLOUTS, run, all_inputs) is None]

    runtime = run.context.runtime
    is_served_here = inputs["teacher"].base_url is None
    gpus = 1 if is_served_here and runtime.device == "cuda" else 0
    with rollout_workers(ROLLOUTS, run, uncached, keys_of_shard, gpus=gpus) as run_task:

        def show(shard: Artifact, cached: bool) -> None:
            if cached:
                PartProgress("rollouts", shard.uri, shard.num_rows).skip()
            elif run_task is not run_in_process:
                # Other processes do not report before their shard is finished.
                PartProgress("rollouts", shard.uri, shard.num_rows, is_local=is_served_here).finish(shard.facts)

        work = map_shards(
            ROLLOUTS,
            run,
            shards,
            on_result=show,
            shard_inputs=lambda shard: shard_inputs[shard.fingerprint],
            max_concurrent=runtime.rollout_shards,
            run_task=run_task,
            **inputs,
        )
        return run_until_done(work)


def _sampling_digest(inputs: Mapping[str, Any]) -> str:
    """Return a digest, equal for rollouts of the same teacher, sampling and tools, whatever their number."""
    amounts = {"num_samples", "trajectories_file"}
    rollouts = {name: value for name, value in inputs["rollouts"].identity().items() if name not in amounts}
    return digest([inputs["model"].fingerprint, rollouts, inputs["tool_schemas"]])


@ROLLOUTS.made_by
async def rollouts_task(
    shard: Artifact,
    model: Model,
    teacher: TeacherConfig,
    rollouts: RolloutsConfig,
    tools: ToolsConfig,
    tool_schemas: str,
    metadata: Artifact | None,
    wanted: ShardTarget | None,
    key: str,
    context: RunContext,
) -> Artifact:
    """Sample the teacher for one shard. Every completion goes to the journal, so a failure loses none."""
    prompts = list(read_prompts(prompts_file(shard)))
    prompt_metadata = _metadata_of(prompts, metadata)
    plan = None
    if wanted is not None:
        plan = UntilAccepted(
            prompts,
            rollouts.num_samples,
            target=wanted.rows,
            per_prompt=wanted.per_prompt,
            max_candidates=wanted.max_candidates,
            accepts=TrajectoryFilter(wanted.acceptance, prompt_metadata).accepts,
        )
    sampled = await sample(
        prompts,
        model,
        rollouts,
        tools,
        context,
        stage="rollouts",
        part=key,
        teacher=teacher,
        metadata={prompt: row.metadata for prompt, row in prompt_metadata.items()},
        plan=plan,
    )
    check_failures(sampled, context.runtime.failure_budget)
    progress().say("saving trajectories")
    facts = sampled.facts if plan is None else {**sampled.facts, "accepted": plan.num_accepted}
    return context.store.write_rows("rollouts", digest(key), TRAJECTORIES_FILE, sampled.trajectories, facts)


def keys_of_shard(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys of a shard's rollouts, given the arguments of its task."""
    prompts = list(read_prompts(prompts_file(arguments["shard"])))
    toolbox = Toolbox.from_config(arguments["tools"])
    metadata = {prompt: row.metadata for prompt, row in _metadata_of(prompts, arguments["metadata"]).items()}
    return rollout_keys(prompts, arguments["rollouts"], toolbox, arguments["model"].fingerprint, metadata)


def _metadata_of(prompts: Sequence[Prompt], metadata: Artifact | None) -> dict[str, PromptMetadata]:
    rows = {} if metadata is None else read_metadata(metadata_file(metadata))
    return {prompt.id: rows[prompt.id] for prompt in prompts if prompt.id in rows}
