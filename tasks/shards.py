"""What the stages that go over the trajectories shard by shard have in common."""

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from stillhouse.rollouts.summary import add_up
from stillhouse.types import Artifact, JsonObject
from tasks.cache.stage import Stage
from tasks.run.context import Run


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
    num_rows = sum(shard.num_rows for shard in shards)
    collected = Shards(shards=shards, facts={**add_up([shard.facts for shard in shards]), "rows": num_rows})
    run.note_stage(stage.name, collected, cached=all(cached for _, cached in results), seconds=seconds)
    return list(shards)
