"""A teacher's scores of the rows to train on, made once: the soft targets of `sft.loss: kl`.

Where `runtime.training_deployment` names a deployment, the teacher runs in a flow run of it.
"""

from stillhouse.config import DistillConfig, SftConfig, StudentConfig
from stillhouse.inference.budget import remaining_budget
from stillhouse.training.sft.sources import source_fingerprint
from stillhouse.types import Artifact, Model
from tasks.remote.flow_run_stage import call_stage_on
from tasks.run.context import Run, RunContext
from tasks.run.stage import Stage
from tasks.training_job import run_training_job

SCORES = Stage("scores", version=3, result="{rows} scored, {teacher_nll:.3g} nats a token", is_remote=True)

_ROWS = ("dataset_weight", "sources", "too_long", "train_on")
_TEACHER = ("loss", "teacher", "teachers", "top_k", "soft_temperature")


def score_rows(start: Model, dataset: Artifact | None, config: DistillConfig, run: Run) -> Artifact:
    """Have the teacher of `config.sft` score the dataset's kept rows and `sft.sources` as `start` reads them."""
    # Of the settings only those that decide what is scored and how: another learning rate scores nothing anew.
    settings = {name: getattr(config.sft, name) for name in (*_ROWS, *_TEACHER)}
    reading = {name: getattr(config.student, name) for name in ("model", "chat_template_kwargs", "max_length", "dtype")}
    is_named = config.sft.teacher or config.sft.teachers
    return call_stage_on(
        config.runtime.training_deployment,
        SCORES,
        run,
        start=start,
        dataset=dataset,
        sources=[source_fingerprint(source) for source in config.sft.sources],
        student=StudentConfig(**reading),
        sft=SftConfig(**settings),
        default_teacher=None if is_named or config.teacher.base_url is not None else config.teacher.model,
    )


@SCORES.made_by
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
    """Score rows. What was scored when it was killed is in the ledger."""
    job = {
        "method": SCORES.name,
        "sft": sft,
        "dataset_folder": None if dataset is None else dataset.uri,
        "teacher_ref": default_teacher,
        "budget": remaining_budget(context.run_id, context.budget),
    }
    return run_training_job(job, start, student, SCORES, key, context, context.runtime.in_one_process)
