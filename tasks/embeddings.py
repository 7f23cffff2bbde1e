"""Embeddings: prompts as vectors."""

from pathlib import Path

from prefect import task

from stillhouse.config import DistillConfig, EmbeddingsConfig, ModelRole, TeacherConfig
from stillhouse.dataset.embeddings.embed import Embedder, prompt_text, write_embeddings
from stillhouse.dataset.schema import EMBEDDINGS_FILE
from stillhouse.inference.budget import shared_budget
from stillhouse.inference.rate_limit import controller_of
from stillhouse.store import digest
from stillhouse.store.records import read_trajectories
from stillhouse.types import Artifact, Model
from tasks.cache.journal import journal_of
from tasks.cache.shards import measure_shards
from tasks.cache.stage import CACHED_STAGE, Stage
from tasks.models import endpoint_of, teacher_model
from tasks.rollouts import Rollouts
from tasks.run.context import Run, RunContext
from tasks.run.progress import PartProgress
from tasks.sampling import TRAJECTORIES_FILE

EMBEDDINGS = Stage("embeddings", version=1)


def embed(rollouts: Rollouts, config: DistillConfig, run: Run) -> list[Artifact] | None:
    """Embeds the prompts of each shard's trajectories; returns artifacts with `EMBEDDINGS_FILE`, None if off.

    Raises:
        EndpointError: the endpoint cannot be used.
        BudgetReached: the run's budget is spent.
    """
    section = config.dataset.embeddings
    if section.base_url is None:
        return None
    model = teacher_model(_as_teacher(section))
    return measure_shards(EMBEDDINGS, embeddings_task, run, rollouts.shards, model=model, embeddings=section)


@task(name="embeddings", **CACHED_STAGE)
async def embeddings_task(
    shard: Artifact, model: Model, embeddings: EmbeddingsConfig, key: str, context: RunContext
) -> Artifact:
    """Embeds the prompts of one shard's trajectories. Vectors already paid for are in the journal."""
    texts = [prompt_text(trajectory) for trajectory in read_trajectories(Path(shard.uri) / TRAJECTORIES_FILE)]
    async with (
        endpoint_of(model, _as_teacher(embeddings), context.runtime, ModelRole.EMBEDDINGS) as endpoint,
        journal_of(context) as journal,
    ):
        embedder = Embedder(
            endpoint,
            embeddings.batch_size,
            journal=journal,
            runtime=context.runtime,
            controller=controller_of(endpoint, context.runtime),
            # No price needs to be known, not even for a cap in money: vectors cost next to nothing.
            budget=shared_budget(context.run_id, key, context.budget, endpoint.price),
        )
        vectors = await embedder.embed([text for text in texts if text is not None])
    PartProgress("embeddings", key, len(texts)).skip()
    facts = embedder.stats.as_facts()
    return context.store.write(
        "embeddings", digest(key), lambda folder: (write_embeddings(folder / EMBEDDINGS_FILE, texts, vectors), facts)
    )


def _as_teacher(section: EmbeddingsConfig) -> TeacherConfig:
    """Endpoint and price of the embeddings in the form of models that sample."""
    price = section.usd_per_million_tokens
    return TeacherConfig(
        model=section.model,
        base_url=section.base_url,
        usd_per_million_prompt_tokens=price,
        usd_per_million_completion_tokens=None if price is None else 0.0,
    )
