"""Dataset: trajectories labelled, filtered, split and written as Parquet."""

from collections.abc import Iterator
from pathlib import Path

from prefect import task

from stillhouse.chat.refs import model_identity
from stillhouse.config import DatasetConfig, StudentConfig
from stillhouse.dataset.build import build_dataset as write_dataset
from stillhouse.store import digest
from stillhouse.store.records import read_metadata, read_trajectories
from stillhouse.types import Artifact, Trajectory
from tasks.caching import CACHED_STAGE, Stage, call_stage
from tasks.prompts import PromptSets, metadata_file
from tasks.rollouts import Rollouts
from tasks.run import Run, RunContext

DATASET = Stage("dataset", version=1)


def build_dataset(
    rollouts: Rollouts, prompts: PromptSets, dataset: DatasetConfig, student: StudentConfig, run: Run
) -> Artifact:
    """The training rows made of a run's rollouts.

    Raises:
        InputError: no row is kept; the message holds the funnel.
    """
    artifact: Artifact = call_stage(
        DATASET,
        dataset_task,
        run,
        rollouts=list(rollouts.shards),
        metadata=prompts.train_metadata,
        dataset=dataset,
        tokenizer=student.model,
        tokenizer_fingerprint=model_identity(student.model),
        max_length=student.max_length,
    )
    return artifact


@task(name="dataset", **CACHED_STAGE)
def dataset_task(
    rollouts: list[Artifact],
    metadata: Artifact,
    dataset: DatasetConfig,
    tokenizer: str,
    tokenizer_fingerprint: str,
    max_length: int,
    key: str,
    context: RunContext,
) -> Artifact:
    """Labels every trajectory, keeps what the config allows, and writes kept and rejected rows with their card."""
    by_prompt = read_metadata(metadata_file(metadata))
    return context.store.write(
        "dataset",
        digest(key),
        lambda folder: write_dataset(
            _trajectories(rollouts), by_prompt, dataset, tokenizer_ref=tokenizer, max_length=max_length, folder=folder
        ),
    )


def _trajectories(rollouts: list[Artifact]) -> Iterator[Trajectory]:
    for shard in rollouts:
        yield from read_trajectories(Path(shard.uri) / "trajectories.jsonl")
