"""A teacher's scores of the rows to train on, made once: the soft targets of `sft.loss: kl`.

Where `runtime.training_deployment` names a deployment, the teacher runs in a flow run of it.
"""

import shutil
from pathlib import Path

from prefect import task

from stillhouse.config import DistillConfig, SftConfig, StudentConfig
from stillhouse.inference.budget import remaining_budget
from stillhouse.store import digest
from stillhouse.training.job import TrainJob
from stillhouse.training.launch.launch import train
from stillhouse.training.sft.sources import source_fingerprint
from stillhouse.training.workdir import exclusive
from stillhouse.types import Artifact, JsonObject, Model
from tasks.cache.stage import CACHED_STAGE, Stage
from tasks.remote.flow_run_stage import call_stage_on
from tasks.run.context import Run, RunContext
from tasks.run.progress import progress

SCORES = Stage("scores", version=1)

_ROWS = ("dataset_weight", "sources", "too_long", "train_on_text", "train_on_reasoning", "train_on_tool_calls")
_TEACHER = ("loss", "teacher", "teachers", "top_k", "soft_temperature")


def score_rows(start: Model, dataset: Artifact | None, config: DistillConfig, run: Run) -> Artifact:
    """Has the teacher of `config.sft` score the dataset's kept rows and `sft.sources` as `start` reads them."""
    # Of the settings only those that decide what is scored and how: another learning rate scores nothing anew.
    settings = {name: getattr(config.sft, name) for name in (*_ROWS, *_TEACHER)}
    reading = {name: getattr(config.student, name) for name in ("model", "chat_template_kwargs", "max_length", "dtype")}
    artifact: Artifact = call_stage_on(
        config.runtime.training_deployment,
        SCORES,
        scores_task,
        run,
        start=start,
        dataset=dataset,
        sources=[source_fingerprint(source) for source in config.sft.sources],
        student=StudentConfig(**reading),
        sft=SftConfig(**settings),
        default_teacher=None if config.sft.teacher or config.sft.teachers else config.teacher.model,
    )
    return artifact


@task(name="scores", **CACHED_STAGE)
def scores_task(
    start: Model,
    dataset: Artifact | None,
    sources: list[str],
    student: StudentConfig,
    sft: SftConfig,
    default_teacher: str | None,
    key: str,
    context: RunContext,
) -> Artifact:
    """Scores rows. What was scored when it was killed is in the ledger."""
    progress().update(SCORES.name, 0, None, doing="starting")
    folders = context.store.root / "training"
    job = TrainJob(
        method="scores",
        student_ref=start.ref,
        student=student,
        sft=sft,
        dataset_folder=None if dataset is None else dataset.uri,
        teacher_ref=default_teacher,
        work_dir=folders,
        output_dir=folders,
        runtime=context.runtime.in_one_process,
        budget=remaining_budget(context.run_id, context.budget),
    )
    work_dir = folders / f"{SCORES.name}-{job.digest()[:16]}"
    with exclusive(work_dir / "flow"):

        def fill(folder: Path) -> tuple[int, JsonObject]:
            facts = train(job.model_copy(update={"work_dir": work_dir, "output_dir": folder}), progress())
            return facts["rows"], facts

        artifact = context.store.write(SCORES.name, digest(key), fill)
        context.store.share(artifact)
    shutil.rmtree(work_dir, ignore_errors=True)
    return artifact
