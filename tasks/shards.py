"""What the stages that go over the trajectories shard by shard have in common."""

from collections.abc import Collection, Sequence

from pydantic import BaseModel, ConfigDict

from stillhouse.rollouts.summary import add_up
from stillhouse.store.records import read_jsonl
from stillhouse.types import Artifact, JsonObject, PromptMetadata
from tasks.caching import Stage
from tasks.prompts import metadata_file
from tasks.run import Run, RunContext


class Shards(BaseModel):
    """A stage's artifacts, one for each shard of trajectories in their order."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    shards: tuple[Artifact, ...]
    facts: JsonObject


def note_shards(stage: Stage, results: Sequence[tuple[Artifact, bool]], run: Run, *, seconds: float) -> list[Artifact]:
    """The artifacts of a stage, with its line in the run's list of stages.

    Args:
        stage: which.
        results: what `recall_shards` gave.
        run: the flow run this belongs to.
        seconds: wall time that the run spent on it.
    """
    shards = tuple(artifact for artifact, _ in results)
    collected = Shards(shards=shards, facts=add_up([shard.facts for shard in shards]))
    run.note_stage(stage.name, collected, cached=all(cached for _, cached in results), seconds=seconds)
    return list(shards)


def metadata_of(metadata: Artifact, prompt_ids: Collection[str]) -> dict[str, PromptMetadata]:
    """The metadata of some prompts, by their ids; that of all others is read past."""
    rows = read_jsonl(metadata_file(metadata))
    return {row["prompt_id"]: PromptMetadata(**row) for row in rows if row["prompt_id"] in prompt_ids}


def with_key(context: RunContext, variable: str | None) -> RunContext:
    """The context for an endpoint whose API key is in another environment variable; None leaves it."""
    if variable is None:
        return context
    return context.model_copy(update={"runtime": context.runtime.model_copy(update={"api_key_env": variable})})
