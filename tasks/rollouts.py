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
from tasks.rollout_shard import ROLLOUTS, Wanted, keys_of_shard, rollouts_task
from tasks.run.context import Run
from tasks.run.interruption import run_until_done
from tasks.run.progress import PartProgress, rollout_stage
from tasks.run.progress_artifact import ProgressArtifact


class Rollouts(BaseModel):
    """The trajectories of all training prompts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    shards: tuple[Artifact, ...]
    metadata: tuple[Artifact, ...]
    """Of the prompts of each shard: a changed expected answer concerns its own shard alone."""
    sampling: str | None
    """Hash of teacher, sampling and tools; None for trajectories that were sampled elsewhere."""
    facts: JsonObject

    def metadata_of(self, shard: Artifact) -> dict[str, Artifact]:
        """The input `metadata` of a stage that goes over the shards."""
        return {"metadata": self._metadata_by_uri[shard.uri]}

    @cached_property
    def _metadata_by_uri(self) -> dict[str, Artifact]:
        return {shard.uri: about for shard, about in zip(self.shards, self.metadata, strict=True)}


def sample_teacher(
    prompts: PromptSets,
    config: DistillConfig,
    run: Run,
    *,
    wanted: Callable[[list[Artifact]], list[Wanted]] | None = None,
) -> Rollouts:
    """The teacher's trajectories for the training prompts.

    Args:
        prompts: of the run.
        config: its sections `teacher`, `rollouts` and `tools` are used.
        run: the flow run.
        wanted: says what each shard of prompts should give; None asks for every sample.

    Raises:
        ConfigError: `teacher.batch` is set with what no batch endpoint can do.
        FailureBudgetExceeded: more rollouts of a shard failed than the config allows; the rest is not asked again.
        EndpointError: the endpoint cannot be used.
    """
    teacher, rollouts, tools = config.teacher, config.rollouts, config.tools
    require_batchable(teacher, rollouts, tools)
    started = time.monotonic()
    toolbox = Toolbox.from_config(tools)
    inputs = _inputs(config, toolbox)
    # A batch takes hours whatever its size.
    shard_size = max(1, MAX_REQUESTS // rollouts.num_samples) if teacher.batch else run.context.runtime.shard_size
    parts = _write_shards(prompts, rollouts.max_prompts, shard_size, run)
    shards, metadata = [shard for shard, _ in parts], [about for _, about in parts]
    total = rollouts.num_samples * sum(shard.num_rows for shard in shards)
    owed = [None] * len(shards) if wanted is None else wanted(shards)
    # A changed expected answer samples anew only where a tool or a filter is told of it.
    told = [about if toolbox.takes_context or wanted else None for about in metadata]
    own = {
        shard.fingerprint: {"wanted": one, "metadata": about}
        for shard, one, about in zip(shards, owed, told, strict=True)
    }
    with ProgressArtifact(run.record) as page, rollout_stage("rollouts", total, page):
        results = _sample_shards(shards, own, inputs, run)
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
    shards: list[Artifact], own: Mapping[str, JsonObject], inputs: JsonObject, run: Run
) -> list[tuple[Artifact, bool]]:
    """Each shard's trajectories and whether they were at hand.

    Args:
        shards: of prompts.
        own: what each depends on beside `inputs`, by its fingerprint.
        inputs: what all depend on.
        run: the flow run.
    """

    def owed() -> list[Artifact]:
        every = ((shard, {"shard": shard, **own[shard.fingerprint], **inputs}) for shard in shards)
        return [shard for shard, needed in every if find_cached(ROLLOUTS, run, needed) is None]

    runtime = run.context.runtime
    is_served_here = inputs["teacher"].base_url is None
    gpus = 1 if is_served_here and runtime.device == "cuda" else 0
    with rollout_workers(ROLLOUTS, run, owed, keys_of_shard, gpus=gpus) as call:
        work = map_shards(
            ROLLOUTS,
            rollouts_task,
            run,
            shards,
            on_result=_hear if call is run_in_process else _hear_elsewhere,
            shard_inputs=lambda shard: own[shard.fingerprint],
            at_once=runtime.rollout_shards,
            call=call,
            **inputs,
        )
        return run_until_done(work)


def _inputs(config: DistillConfig, toolbox: Toolbox) -> dict[str, Any]:
    """What every shard depends on."""
    return {
        "model": teacher_model(config.teacher),
        "teacher": config.teacher,
        # A shard does not depend on how many there are.
        "rollouts": config.rollouts.model_copy(update={"max_prompts": None}),
        # Rewards score trajectories and sample none.
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
        shards.append((shard, write_metadata(store, [about for _, about in part])))
    return shards


def _sampling_digest(inputs: Mapping[str, Any]) -> str:
    """Equal for rollouts of one kind, however many there are."""
    amounts = {"num_samples", "trajectories_file", "failure_budget"}
    rollouts = {
        name: value for name, value in inputs["rollouts"].model_dump(mode="json").items() if name not in amounts
    }
    return digest([inputs["model"].fingerprint, rollouts, inputs["tool_schemas"]])


def _hear(shard: Artifact, cached: bool) -> None:
    if cached:
        PartProgress("rollouts", shard.uri, shard.num_rows).skip()


def _hear_elsewhere(shard: Artifact, cached: bool) -> None:
    """What other processes sample is shown a shard at a time."""
    part = PartProgress("rollouts", shard.uri, shard.num_rows)
    part.skip() if cached else part.finish(shard.facts.get("usd") or 0.0)
