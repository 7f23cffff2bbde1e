"""A job of the training process as a stage: artifact, run in MLflow, the folder that a killed one continues in."""

import shutil
from pathlib import Path

from stillhouse.config import RuntimeConfig, StudentConfig
from stillhouse.forecast.layout import require_room
from stillhouse.progress.state import Fact
from stillhouse.store import digest
from stillhouse.training.job import TrackingTarget, TrainJob
from stillhouse.training.launch.launch import train
from stillhouse.training.workdir import exclusive, mirrored
from stillhouse.types import Artifact, JsonObject, Model
from tasks.run.context import RunContext
from tasks.run.interruption import raise_if_paused
from tasks.run.progress import progress
from tasks.run.stage import Stage


def run_training_job(
    method: JsonObject,
    start: Model,
    student: StudentConfig,
    stage: Stage,
    key: str,
    context: RunContext,
    runtime: RuntimeConfig,
    *,
    logged_as: str | None = None,
) -> Artifact:
    """Run a job of the fields `method` on `start` to its end; raise as the job.

    The artifact's files go to MLflow below `logged_as`, if that is given.
    """
    progress().update(stage.name, 0, None, doing="starting")
    folders = context.store.root / "training"
    job = TrainJob(
        **method, student_ref=start.ref, student=student, work_dir=folders, output_dir=folders, runtime=runtime
    )
    require_room(job)
    # Not by the key: a setting that changes no weights should not keep a killed training from being continued.
    work_dir = folders / f"{stage.name}-{job.digest()[:16]}"
    with (
        # The flow's lock, beside the training's own: the job file in the folder decides where the student goes.
        exclusive(work_dir / "flow"),
        mirrored(work_dir, context.store) as remove_copies,
        context.reopen_nested_run(stage.name, {"student": student.model_dump(mode="json")}, work_dir) as record,
    ):
        tracking = None if record.run_id is None else TrackingTarget(uri=str(record.uri), run_id=record.run_id)

        def fill(folder: Path) -> tuple[int, JsonObject]:
            filled = job.model_copy(update={"work_dir": work_dir, "output_dir": folder, "tracking": tracking})
            facts = train(filled, _ProgressOf(stage.name))
            return facts.get("rows", 0), {**facts, "mlflow_run_id": record.run_id}

        artifact = context.store.write(stage.name, digest(key), fill)
        if logged_as is not None:
            record.log_artifacts(Path(artifact.uri), logged_as)
        context.store.share(artifact)
        remove_copies()
    # The complete result is in the store: checkpoints are no longer needed.
    shutil.rmtree(work_dir, ignore_errors=True)
    return artifact


class _ProgressOf:
    """Shows the progress of a training under the name of its stage, where several stages train by one method.

    A pause of the flow run is raised here: the training is then told to stop, saves a checkpoint and is continued.
    """

    def __init__(self, stage: str) -> None:
        self._stage = stage

    def update(self, stage: str, done: int, total: int | None, **facts: Fact) -> None:
        progress().update(self._stage, done, total, **facts)
        raise_if_paused()
