"""Embeddings: prompts as vectors. A task run is a shard of trajectories; shards share an event loop and a limit."""

import time
from pathlib import Path
from typing import Any

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
from tasks.cache.shards import map_shards, record_shards
from tasks.cache.stage import CACHED_STAGE, Stage
from tasks.models import endpoint_of, teacher_model
from tasks.rollouts import Rollouts
from tasks.run.context import Run, RunContext
from tasks.run.interruption import run_until_done
from tasks.run.progress import PartProgress, rollout_stage
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
    started = time.monotonic()
    inputs: dict[str, Any] = {"model": teacher_model(_as_teacher(section)), "embeddings": section}

    def on_result(artifact: Artifact, cached: bool) -> None:
        if cached:
            PartProgress("embeddings", artifact.uri, artifact.num_rows).skip()

    with rollout_stage("embeddings", sum(shard.num_rows for shard in rollouts.shards)):
        work = map_shards(EMBEDDINGS, embeddings_task, run, rollouts.shards, on_result=on_result, **inputs)
        results = run_until_done(work)
    return record_shards(EMBEDDINGS, results, run, seconds=time.monotonic() - started)


@task(name="embeddings", **CACHED_STAGE)
async def embeddings_task(
    shard: Artifact, model: Model, embeddings: EmbeddingsConfig, key: str, context: RunContext
) -> Artifact:
    """Embeds what one shard's trajectories were asked. What is paid for is in the journal, whatever happens here."""
    texts = [prompt_text(one) for one in read_trajectories(Path(shard.uri) / TRAJECTORIES_FILE)]
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
        "embeddings",
        digest(key),
        lambda folder: (write_embeddings(folder / EMBEDDINGS_FILE, texts, vectors), facts),
    )


def _as_teacher(section: EmbeddingsConfig) -> TeacherConfig:
    """The endpoint in the terms of those that sample: where it is, and what it costs. It completes nothing."""
    price = section.usd_per_million_tokens
    return TeacherConfig(
        model=section.model,
        base_url=section.base_url,
        usd_per_million_prompt_tokens=price,
        usd_per_million_completion_tokens=None if price is None else 0.0,
    )
