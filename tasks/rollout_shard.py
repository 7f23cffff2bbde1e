"""One shard of rollouts, which a task run samples. Shards in one process share an event loop and a limit."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prefect import task
from pydantic import BaseModel, ConfigDict

from stillhouse.config import RolloutsConfig, TeacherConfig, ToolsConfig
from stillhouse.dataset.acceptance import Acceptance, TrajectoryFilter
from stillhouse.rollouts.context import rollout_keys
from stillhouse.rollouts.plan import UntilAccepted
from stillhouse.store import digest
from stillhouse.store.records import read_metadata, read_prompts, write_jsonl
from stillhouse.tools import Toolbox
from stillhouse.types import Artifact, Model, Prompt, PromptMetadata
from tasks.cache.stage import CACHED_STAGE, Stage
from tasks.models import endpoint_of
from tasks.prompts import metadata_file, prompts_file
from tasks.run.context import RunContext
from tasks.run.progress import PartProgress
from tasks.sampling import TRAJECTORIES_FILE, check_failures, sample

ROLLOUTS = Stage("rollouts", version=1)


class ShardTarget(BaseModel):
    """Number of accepted trajectories to sample in one shard, where the dataset has a target."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: int
    """Accepted trajectories."""
    max_candidates: int | None
    """Most rollouts; None leaves it to `rollouts.num_samples`."""
    per_prompt: int | None
    """Most accepted trajectories of one prompt."""
    acceptance: Acceptance


@task(name="rollouts", **CACHED_STAGE)
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
    """Samples the teacher for one shard. Every answer goes to the journal, so a failure loses none."""
    prompts = list(read_prompts(prompts_file(shard)))
    part = PartProgress("rollouts", key, len(prompts) * rollouts.num_samples)
    prompt_metadata = _metadata_of(prompts, metadata)
    plan = None if wanted is None else _plan(prompts, rollouts, wanted, prompt_metadata)
    async with endpoint_of(model, teacher, context.runtime) as endpoint:
        sampled = await sample(
            prompts,
            endpoint,
            rollouts,
            tools,
            context,
            part,
            part=key,
            teacher=teacher,
            metadata={prompt: row.metadata for prompt, row in prompt_metadata.items()},
            plan=plan,
        )
    check_failures(sampled, rollouts.failure_budget)
    facts = sampled.facts if plan is None else {**sampled.facts, "accepted": plan.num_accepted}
    return context.store.write(
        "rollouts",
        digest(key),
        lambda folder: (write_jsonl(folder / TRAJECTORIES_FILE, sampled.trajectories), facts),
    )


def _plan(
    prompts: list[Prompt], rollouts: RolloutsConfig, wanted: ShardTarget, metadata: dict[str, PromptMetadata]
) -> UntilAccepted:
    return UntilAccepted(
        prompts,
        rollouts.num_samples,
        target=wanted.rows,
        per_prompt=wanted.per_prompt,
        max_candidates=wanted.max_candidates,
        accepts=TrajectoryFilter(wanted.acceptance, metadata).accepts,
    )


def keys_of_shard(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Yields the keys of a shard's rollouts, given the arguments of its task."""
    prompts = list(read_prompts(prompts_file(arguments["shard"])))
    toolbox = Toolbox.from_config(arguments["tools"])
    metadata = {prompt: row.metadata for prompt, row in _metadata_of(prompts, arguments["metadata"]).items()}
    return rollout_keys(prompts, arguments["rollouts"], toolbox, arguments["model"].fingerprint, metadata)


def _metadata_of(prompts: Sequence[Prompt], metadata: Artifact | None) -> dict[str, PromptMetadata]:
    rows = {} if metadata is None else read_metadata(metadata_file(metadata))
    return {prompt.id: rows[prompt.id] for prompt in prompts if prompt.id in rows}
