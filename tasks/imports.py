"""Rollouts that were sampled elsewhere: the trajectories of a file, in shards like those sampled here."""

import logging
from collections.abc import Container, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from prefect import task

from stillhouse.errors import InputError
from stillhouse.rollouts.summary import add_up, summarise
from stillhouse.store import digest
from stillhouse.store.fingerprint import file_sha256
from stillhouse.store.records import read_jsonl, read_metadata, trajectory_from_json, write_jsonl
from stillhouse.types import Artifact, Trajectory
from tasks.caching import CACHED_STAGE, Stage, call_stage
from tasks.prompts import PromptSets, metadata_file, write_metadata
from tasks.rollouts import Rollouts
from tasks.run import Run, RunContext
from tasks.sampling import TRAJECTORIES_FILE

IMPORTS = Stage("rollouts", version=1)

_SHOWN: Final = 5
_logger = logging.getLogger("stillhouse.imports")


def import_trajectories(path: str, prompts: PromptSets, failure_budget: float, run: Run) -> Rollouts:
    """The trajectories of `path` whose prompts are among the training prompts.

    Raises:
        InputError: the file is missing, more of its rows than `failure_budget` are malformed, or none belongs to a
            training prompt.
    """
    file = Path(path)
    if not file.is_file():
        raise InputError(
            f"rollouts.trajectories_file = {path!r}: no such file; expected what `stillhouse convert` wrote"
        )
    imported: Rollouts = call_stage(
        IMPORTS,
        import_task,
        run,
        label="rollouts",
        path=path,
        sha256=file_sha256(file),
        metadata=prompts.train_metadata,
        failure_budget=failure_budget,
        shard_rows=run.context.runtime.shard_size,
    )
    return imported


@task(name="import", **CACHED_STAGE)
def import_task(
    path: str,
    sha256: str,
    metadata: Artifact,
    failure_budget: float,
    shard_rows: int,
    key: str,
    context: RunContext,
) -> Rollouts:
    """Reads, checks and splits into shards; a row left out is told of with its line."""
    known = read_metadata(metadata_file(metadata))
    source = _Source(Path(path), known)
    trajectories = iter(source)
    shards: list[Artifact] = []
    about: list[Artifact] = []
    while rows := list(islice(trajectories, shard_rows)):
        shards.append(_write_shard(rows, digest([key, len(shards)]), context))
        prompt_ids = dict.fromkeys(one.prompt_id for one in rows)
        about.append(write_metadata(context.store, [known[prompt_id] for prompt_id in prompt_ids]))
    source.check(failure_budget)
    facts = {**add_up([shard.facts for shard in shards]), "other_prompts": source.num_strangers}
    return Rollouts(shards=tuple(shards), metadata=tuple(about), sampling=None, facts=facts)


def _write_shard(rows: list[Trajectory], key: str, context: RunContext) -> Artifact:
    return context.store.write(
        "rollouts", key, lambda folder: (write_jsonl(folder / TRAJECTORIES_FILE, rows), summarise(rows))
    )


class _Source:
    """The trajectories of a file that belong to known prompts, and an account of the other rows."""

    def __init__(self, path: Path, known: Container[str]) -> None:
        self._path = path
        self._known = known
        self._problems: list[str] = []
        self._num_rows = 0
        self._num_given = 0
        self.num_strangers = 0
        """Rows of prompts that are held out or were not read."""

    def __iter__(self) -> Iterator[Trajectory]:
        for number, row in enumerate(read_jsonl(self._path), start=1):
            self._num_rows = number
            try:
                trajectory = trajectory_from_json(row)
            except (KeyError, TypeError, ValueError) as error:
                self._problems.append(
                    f"{self._path}, line {number}: expected a trajectory: {type(error).__name__}: {error}"
                )
                continue
            if trajectory.prompt_id in self._known:
                self._num_given += 1
                yield trajectory
            else:
                self.num_strangers += 1

    def check(self, failure_budget: float) -> None:
        for problem in self._problems:
            _logger.warning("row left out: %s", problem)
        if len(self._problems) > failure_budget * self._num_rows:
            lines = "\n  ".join(self._problems[:_SHOWN])
            raise InputError(
                f"{len(self._problems)} of {self._num_rows} rows of {self._path} are malformed, more than "
                f"rollouts.failure_budget = {failure_budget:.0%}. Mend these rows:\n  {lines}"
            )
        if self._num_given == 0:
            raise InputError(
                f"none of {self._num_rows} rows of {self._path} belongs to a training prompt ({self.num_strangers} "
                "belong to others): set prompts.source to the prompts that were converted with it, and "
                "prompts.held_out_fraction below 1"
            )
