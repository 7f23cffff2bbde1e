"""The teacher's surprise: how likely rows are to it."""

from contextlib import closing
from pathlib import Path

from prefect import task

from stillhouse.config import DistillConfig
from stillhouse.dataset.surprise import TeacherSurprise, write_surprise
from stillhouse.store import digest
from stillhouse.store.records import read_trajectories
from stillhouse.types import Artifact, JsonObject, Model
from tasks.cache.stage import CACHED_STAGE, Stage, call_stage
from tasks.models import scoring_teacher
from tasks.rollouts import Rollouts
from tasks.run.context import Run, RunContext
from tasks.run.progress import progress
from tasks.sampling import TRAJECTORIES_FILE

TEACHER_NLL = Stage("teacher_nll", version=1)


def measure_surprise(rollouts: Rollouts, config: DistillConfig, run: Run) -> Artifact | None:
    """Measures how surprised the teacher is by each row; the artifact's fact `parts` names the file of each shard.

    Raises:
        ConfigError: the teacher cannot be loaded.
    """
    if not config.dataset.labels.teacher_nll:
        return None
    artifact: Artifact = call_stage(
        TEACHER_NLL, surprise_task, run, shards=list(rollouts.shards), teacher=scoring_teacher(config)
    )
    return artifact


@task(name="teacher-nll", **CACHED_STAGE)
def surprise_task(shards: list[Artifact], teacher: Model | None, key: str, context: RunContext) -> Artifact:
    """Measures all shards. What the teacher scored when it was killed is in the ledger."""
    num_rows = sum(shard.num_rows for shard in shards)

    def fill(folder: Path) -> tuple[int, JsonObject]:
        parts: list[str] = []
        num_done = num_measured = 0
        with closing(TeacherSurprise(teacher, context.runtime)) as surprise:
            for number, shard in enumerate(shards):
                progress().update(TEACHER_NLL.name, num_done, num_rows)
                values = surprise.measure(list(read_trajectories(Path(shard.uri) / TRAJECTORIES_FILE)))
                parts.append(f"{number:05}.parquet")
                write_surprise(folder / parts[-1], values)
                num_done += len(values)
                num_measured += sum(value is not None for value in values)
        return num_done, {"parts": parts, "rows_scored": num_measured}

    return context.store.write(TEACHER_NLL.name, digest(key), fill)
