"""Rollouts that were sampled elsewhere: the trajectories of a file, in shards like those sampled here."""

import logging
from itertools import islice
from pathlib import Path

from prefect import task

from stillhouse.errors import InputError
from stillhouse.rollouts.imported import TrajectoryFile
from stillhouse.rollouts.summary import add_up, summarise
from stillhouse.store import digest
from stillhouse.store.fingerprint import file_sha256
from stillhouse.store.records import read_metadata
from stillhouse.types import Artifact
from tasks.cache.stage import call_stage
from tasks.prompts import PromptSets, metadata_file, write_metadata
from tasks.rollouts import ROLLOUTS, Rollouts
from tasks.run.context import Run, RunContext
from tasks.run.stage import CACHED_STAGE, Stage
from tasks.sampling import TRAJECTORIES_FILE

IMPORTS = Stage(
    "rollouts",
    version=4,
    result=ROLLOUTS.result,
    left_out={"malformed": "malformed", "of_other_prompts": "of other prompts"},
)

_logger = logging.getLogger("stillhouse.imports")


def import_trajectories(path: str, prompts: PromptSets, run: Run) -> Rollouts:
    """Import the trajectories of the file `path` whose prompts are among the training prompts.

    Raises InputError if the file is missing, more of its rows than `runtime.failure_budget` are malformed, or none
    belongs to a training prompt.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        problem = "is a folder" if file.is_dir() else "is missing"
        raise InputError(
            f"rollouts.trajectories_file: {file} {problem}; expected a file of trajectories, as `stillhouse convert "
            "SOURCE -o FOLDER` writes it from what another program left"
        )
    return call_stage(
        IMPORTS,
        run,
        path=str(file),
        sha256=file_sha256(file),
        metadata=prompts.train_metadata,
        failure_budget=run.context.runtime.failure_budget,
        shard_rows=run.context.runtime.shard_size,
    )


@IMPORTS.made_by
@task(name="import", **CACHED_STAGE)
def import_task(
    path: str, sha256: str, metadata: Artifact, failure_budget: float, shard_rows: int, key: str, context: RunContext
) -> Rollouts:
    """Read and check the file and write it in shards; rows that are left out are logged with their lines."""
    prompt_metadata = read_metadata(metadata_file(metadata))
    source = TrajectoryFile(Path(path), prompt_metadata)
    trajectories = iter(source)
    shards: list[Artifact] = []
    shard_metadata: list[Artifact] = []
    while rows := list(islice(trajectories, shard_rows)):
        key_of_shard = digest([key, len(shards)])
        shards.append(context.store.write_rows("rollouts", key_of_shard, TRAJECTORIES_FILE, rows, summarise(rows)))
        prompt_ids = dict.fromkeys(trajectory.prompt_id for trajectory in rows)
        shard_metadata.append(write_metadata(context.store, [prompt_metadata[prompt_id] for prompt_id in prompt_ids]))
    for problem in source.problems:
        _logger.warning("row left out: %s", problem)
    source.check(failure_budget)
    if source.num_unmatched:
        message = "%d rows of %s left out: their prompts are held out or not among those of prompts.source"
        _logger.warning(message, source.num_unmatched, path)
    left_out = {"malformed": len(source.problems), "of_other_prompts": source.num_unmatched}
    facts = {**add_up([shard.facts for shard in shards]), **left_out}
    return Rollouts(shards=tuple(shards), metadata=tuple(shard_metadata), sampling=None, facts=facts)
