"""Rollouts: the teacher's trajectories for all training prompts, a shard at a time."""

import time
from collections.abc import Callable, Mapping
from functools import cached_property
from itertools import islice
from typing import Any

from pydantic import BaseModel, ConfigDict

from stillhouse.config import DistillConfig
from stillhouse.inference.batch import MAX_REQUESTS, require_batchable
from stillhouse.rollouts.summary import add_up
from stillhouse.store import digest
from stillhouse.store.records import read_metadata_rows, read_prompts
from stillhouse.tools import Toolbox
from stillhouse.types import Artifact, JsonObject
from tasks.cache.shards import map_shards
from tasks.cache.stage import find_cached, run_in_process
from tasks.models import teacher_model
from tasks.prompts import PromptSets, metadata_file, prompts_file, write_metadata, write_prompts
from tasks.remote.rollout_workers import rollout_workers
from tasks.rollout_shard import ROLLOUTS, ShardTarget, keys_of_shard, rollouts_task
from tasks.run.context import Run
from tasks.run.interruption import run_until_done
from tasks.run.progress import PartProgress, rollout_stage
from tasks.run.progress_artifact import ProgressArtifact


class Rollouts(BaseModel):
    """The trajectories of all training prompts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    shards: tuple[Artifact, ...]
    metadata: tuple[Artifact, ...]
    """Of the prompts of each shard, so that a changed expected answer affects its own shard alone."""
    sampling: str | None
    """Hash of teacher, sampling and tools; None for trajectories that were sampled elsewhere."""
    facts: JsonObject

    def metadata_of(self, shard: Artifact) -> dict[str, Artifact]:
        """The input `metadata` for one shard, as `map_shards` takes it."""
        return {"metadata": self._metadata_by_uri[shard.uri]}

    @cached_property
    def _metadata_by_uri(self) -> dict[str, Artifact]:
        return {shard.uri: metadata for shard, metadata in zip(self.shards, self.metadata, strict=True)}


def sample_teacher(
    prompts: PromptSets,
    config: DistillConfig,
    run: Run,
    *,
    wanted: Callable[[list[Artifact]], list[ShardTarget]] | None = None,
) -> Rollouts:
    """The teacher's trajectories for the training prompts.

    Args:
        prompts: of the run.
        config: its sections `teacher`, `rollouts` and `tools` are used.
        run: the flow run.
        wanted: returns the target of each shard of prompts; None samples everything.

    Raises:
        ConfigError: `teacher.batch` is set together with a setting that batch endpoints do not support.
        FailureBudgetExceeded: more rollouts of a shard failed than the config allows; finished ones are kept.
        EndpointError: the endpoint cannot be used.
    """
    teacher, rollouts, tools = config.teacher, config.rollouts, config.tools
    require_batchable(teacher, rollouts, tools)
    started = time.monotonic()
    toolbox = Toolbox.from_config(tools)
    inputs = _inputs(config, toolbox)
    # A batch takes hours whatever its size.
    shard_size = max(1, MAX_REQUESTS // rollouts.num_samples) if teacher.batch else run.context.runtime.shard_size
    shard_pairs = _write_shards(prompts, rollouts.max_prompts, shard_size, run)
    shards, metadata = [shard for shard, _ in shard_pairs], [rows for _, rows in shard_pairs]
    total = rollouts.num_samples * sum(shard.num_rows for shard in shards)
    targets = [None] * len(shards) if wanted is None else wanted(shards)
    # A changed expected answer makes new rollouts only if a tool or a filter reads it.
    sampling_metadata = metadata if toolbox.takes_context or wanted else [None] * len(shards)
    shard_inputs = {
        shard.fingerprint: {"wanted": target, "metadata": rows}
        for shard, target, rows in zip(shards, targets, sampling_metadata, strict=True)
    }
    with ProgressArtifact(run.record) as page, rollout_stage("rollouts", total, page):
        results = _sample_shards(shards, shard_inputs, inputs, run)
    collected = Rollouts(
        shards=tuple(shard for shard, _ in results),
        metadata=tuple(metadata),
        sampling=_sampling_digest(inputs),
        facts=add_up([shard.facts for shard, _ in results]),
    )
    cached = all(cached for _, cached in results)
    run.record_stage("rollouts", collected, cached=cached, seconds=time.monotonic() - started)
    return collected


def _sample_shards(
    shards: list[Artifact], shard_inputs: Mapping[str, JsonObject], inputs: JsonObject, run: Run
) -> list[tuple[Artifact, bool]]:
    """Returns each shard's trajectories and whether they were cached.

    Args:
        shards: of prompts.
        shard_inputs: what each depends on besides `inputs`, by its fingerprint.
        inputs: what all depend on.
        run: the flow run.
    """

    def uncached() -> list[Artifact]:
        candidates = ((shard, {"shard": shard, **shard_inputs[shard.fingerprint], **inputs}) for shard in shards)
        return [shard for shard, all_inputs in candidates if find_cached(ROLLOUTS, run, all_inputs) is None]

    runtime = run.context.runtime
    is_served_here = inputs["teacher"].base_url is None
    gpus = 1 if is_served_here and runtime.device == "cuda" else 0
    with rollout_workers(ROLLOUTS, run, uncached, keys_of_shard, gpus=gpus) as run_task:
        work = map_shards(
            ROLLOUTS,
            rollouts_task,
            run,
            shards,
            on_result=_show_cached if run_task is run_in_process else _show_finished,
            shard_inputs=lambda shard: shard_inputs[shard.fingerprint],
            max_concurrent=runtime.rollout_shards,
            run_task=run_task,
            **inputs,
        )
        return run_until_done(work)


def _inputs(config: DistillConfig, toolbox: Toolbox) -> dict[str, Any]:
    """What every shard depends on."""
    return {
        "model": teacher_model(config.teacher),
        "teacher": config.teacher,
        # A shard does not depend on the number of shards.
        "rollouts": config.rollouts.model_copy(update={"max_prompts": None}),
        # Rewards score trajectories; sampling does not depend on them.
        "tools": config.tools.model_copy(update={"rewards_file": None}),
        "tool_schemas": digest(toolbox.schemas()),
    }


def _write_shards(
    prompts: PromptSets, max_prompts: int | None, shard_size: int, run: Run
) -> list[tuple[Artifact, Artifact]]:
    """Shards of nearly equal size, each an artifact named by its prompts, with the metadata of those prompts."""
    store = run.context.store
    num_prompts = min(prompts.train.num_rows, max_prompts or prompts.train.num_rows)
    num_shards = -(-num_prompts // shard_size)
    # Both files have a row for each prompt, in the same order.
    rows = zip(
        read_prompts(prompts_file(prompts.train)),
        read_metadata_rows(metadata_file(prompts.train_metadata)),
        strict=True,
    )
    shards = []
    for index in range(num_shards):
        size = num_prompts * (index + 1) // num_shards - num_prompts * index // num_shards
        part = list(islice(rows, size))
        shard = write_prompts(store, [prompt for prompt, _ in part], "shards")
        shards.append((shard, write_metadata(store, [metadata for _, metadata in part])))
    return shards


def _sampling_digest(inputs: Mapping[str, Any]) -> str:
    """Equal for rollouts of the same teacher, sampling and tools, whatever their number."""
    amounts = {"num_samples", "trajectories_file", "failure_budget"}
    rollouts = {
        name: value for name, value in inputs["rollouts"].model_dump(mode="json").items() if name not in amounts
    }
    return digest([inputs["model"].fingerprint, rollouts, inputs["tool_schemas"]])


def _show_cached(shard: Artifact, cached: bool) -> None:
    if cached:
        PartProgress("rollouts", shard.uri, shard.num_rows).skip()


def _show_finished(shard: Artifact, cached: bool) -> None:
    """Rollouts of other processes are shown once their shard is finished."""
    part = PartProgress("rollouts", shard.uri, shard.num_rows)
    part.skip() if cached else part.finish(shard.facts.get("usd") or 0.0)
