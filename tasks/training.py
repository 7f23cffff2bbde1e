"""Training: SFT and on-policy distillation, each in a guarded process that resumes from its last checkpoint.

Where `runtime.training_deployment` names a deployment, that process belongs to a flow run of it.
"""

import shutil
from pathlib import Path

from prefect import task

from stillhouse.agent.turns import TurnRules
from stillhouse.config import DistillConfig, OnPolicyConfig, RuntimeConfig, SftConfig, StudentConfig, ToolsConfig
from stillhouse.inference.budget import remaining_budget
from stillhouse.store import digest, file_sha256
from stillhouse.tools.toolbox import Toolbox
from stillhouse.training.job import TrackingTarget, TrainJob, teacher_identities
from stillhouse.training.launch.launch import train
from stillhouse.training.sft.sources import source_fingerprint
from stillhouse.training.workdir import exclusive, mirrored
from stillhouse.types import Artifact, JsonObject, Model
from tasks.cache.stage import CACHED_STAGE, Stage
from tasks.models import trained_student
from tasks.prompts import PromptSets, metadata_file, prompts_file
from tasks.remote.flow_run_stage import call_stage_on
from tasks.run.context import Run, RunContext
from tasks.run.progress import progress
from tasks.scoring import score_rows

SFT = Stage("sft", version=2)
STUDENT_ROLLOUTS = Stage("student_rollouts", version=1)
ON_POLICY = Stage("on_policy", version=5)


def train_sft(start: Model, dataset: Artifact | None, config: DistillConfig, run: Run) -> Model:
    """Fine-tunes `start` on the dataset's kept rows and on `sft.sources`; `dataset` is None for the latter alone."""
    scored: JsonObject = {"scores": score_rows(start, dataset, config, run)} if config.sft.loss == "kl" else {}
    artifact = call_stage_on(
        config.runtime.training_deployment,
        SFT,
        sft_task,
        run,
        start=start,
        dataset=dataset,
        sources=[source_fingerprint(source) for source in config.sft.sources],
        student=config.student,
        sft=config.sft,
        tools=config.tools if config.sft.generate_every_steps else None,
        **scored,
    )
    return trained_student("sft", artifact)


def train_on_policy(start: Model, prompts: PromptSets, config: DistillConfig, run: Run) -> Model:
    """Trains `start` by on-policy distillation on the training prompts, or on what it samples of them beforehand."""
    settings = config.on_policy
    default = None if settings.teachers or not settings.needs_teacher else config.scoring_teacher
    rewards = config.tools.rewards_file if settings.reward_coef > 0.0 else None
    inputs: JsonObject = {
        "start": start,
        "prompts": prompts.train,
        "metadata": prompts.train_metadata,
        "default_teacher": default,
        "teachers": teacher_identities(settings, default),
        "student": config.student,
        "on_policy": settings,
        "tools": config.tools,
        "rewards": None if rewards is None else file_sha256(Path(rewards)),
        "tool_schemas": digest(Toolbox.from_config(config.tools).schemas()),
        "system_prompt": config.rollouts.system_prompt,
        "rules": TurnRules.of(config.rollouts),
    }
    deployment = config.runtime.training_deployment
    measured: JsonObject = {"held_out": prompts.held_out, "held_out_metadata": prompts.held_out_metadata}
    further = measured if settings.generate_every_steps else {}
    if settings.source == "rollouts":
        sampled = {**inputs, "on_policy": settings.without_optimiser}
        further["rollouts"] = call_stage_on(deployment, STUDENT_ROLLOUTS, student_rollouts_task, run, **sampled)
    artifact = call_stage_on(deployment, ON_POLICY, on_policy_task, run, **inputs, **further)
    return trained_student("on_policy", artifact)


@task(name="sft", **CACHED_STAGE)
def sft_task(
    start: Model,
    dataset: Artifact | None,
    sources: list[str],
    student: StudentConfig,
    sft: SftConfig,
    tools: ToolsConfig | None,
    key: str,
    context: RunContext,
    scores: Artifact | None = None,
) -> Artifact:
    """Trains on rows. A training that was killed continues from its checkpoint."""
    job = {
        "method": "sft",
        "sft": sft,
        "dataset_folder": None if dataset is None else dataset.uri,
        "scores_folder": None if scores is None else scores.uri,
        "tools": tools or ToolsConfig(),
    }
    return _train(job, start, student, SFT, key, context, context.runtime)


@task(name="on-policy", **CACHED_STAGE)
def on_policy_task(
    start: Model,
    prompts: Artifact,
    metadata: Artifact,
    default_teacher: str | None,
    teachers: JsonObject,
    student: StudentConfig,
    on_policy: OnPolicyConfig,
    tools: ToolsConfig,
    rewards: str | None,
    tool_schemas: str,
    system_prompt: str | None,
    rules: TurnRules,
    key: str,
    context: RunContext,
    held_out: Artifact | None = None,
    held_out_metadata: Artifact | None = None,
    rollouts: Artifact | None = None,
) -> Artifact:
    """Trains on the student's own samples; resumes like SFT."""
    job = {
        **_on_policy_job(prompts, metadata, default_teacher, on_policy, tools, system_prompt, rules, context),
        "method": "on_policy",
        "held_out_file": held_out and str(prompts_file(held_out)),
        "held_out_metadata_file": held_out_metadata and str(metadata_file(held_out_metadata)),
        "rollouts_folder": rollouts and rollouts.uri,
    }
    return _train(job, start, student, ON_POLICY, key, context, context.runtime.in_one_process)


@task(name="student-rollouts", **CACHED_STAGE)
def student_rollouts_task(
    start: Model,
    prompts: Artifact,
    metadata: Artifact,
    default_teacher: str | None,
    teachers: JsonObject,
    student: StudentConfig,
    on_policy: OnPolicyConfig,
    tools: ToolsConfig,
    rewards: str | None,
    tool_schemas: str,
    system_prompt: str | None,
    rules: TurnRules,
    key: str,
    context: RunContext,
) -> Artifact:
    """Has the student sample and its teachers score, for a training without them. Goes on after its last batch."""
    job = {
        **_on_policy_job(prompts, metadata, default_teacher, on_policy, tools, system_prompt, rules, context),
        "method": "student_rollouts",
    }
    return _train(job, start, student, STUDENT_ROLLOUTS, key, context, context.runtime.in_one_process)


def _on_policy_job(
    prompts: Artifact,
    metadata: Artifact,
    default_teacher: str | None,
    on_policy: OnPolicyConfig,
    tools: ToolsConfig,
    system_prompt: str | None,
    rules: TurnRules,
    context: RunContext,
) -> JsonObject:
    """What sampling and scoring need."""
    return {
        "on_policy": on_policy,
        "prompts_file": str(prompts_file(prompts)),
        "metadata_file": str(metadata_file(metadata)),
        "teacher_ref": default_teacher,
        "tools": tools,
        "system_prompt": system_prompt,
        "budget": remaining_budget(context.run_id, context.budget),
        "rules": rules,
    }


def _train(
    method: JsonObject,
    start: Model,
    student: StudentConfig,
    stage: Stage,
    key: str,
    context: RunContext,
    runtime: RuntimeConfig,
) -> Artifact:
    progress().update(stage.name, 0, None, doing="starting")
    folders = context.store.root / "training"
    job = TrainJob(
        **method, student_ref=start.ref, student=student, work_dir=folders, output_dir=folders, runtime=runtime
    )
    # Not by the key: a setting that changes no weights should not keep a killed training from being continued.
    work_dir = folders / f"{stage.name}-{job.digest()[:16]}"
    # A run in a SQLite file is known to this machine alone.
    is_local_run = (context.tracking.uri or "sqlite").startswith("sqlite")
    with (
        # The flow's lock, beside the training's own: the job file in the folder decides where the student goes.
        exclusive(work_dir / "flow"),
        mirrored(work_dir, context.store, leave_out={"mlflow_run.json"} if is_local_run else set()) as remove_copies,
        context.reopen_nested_run(stage.name, {"student": student.model_dump(mode="json")}, work_dir) as record,
    ):
        tracking = None if record.run_id is None else TrackingTarget(uri=str(record.uri), run_id=record.run_id)

        def fill(folder: Path) -> tuple[int, JsonObject]:
            filled = job.model_copy(update={"work_dir": work_dir, "output_dir": folder, "tracking": tracking})
            facts = train(filled, progress())
            return facts.get("trajectories", 0), {**facts, "mlflow_run_id": record.run_id}

        artifact = context.store.write(stage.name, digest(key), fill)
        if stage is not STUDENT_ROLLOUTS:
            record.log_artifacts(Path(artifact.uri), "student")
        context.store.share(artifact)
        remove_copies()
    # The complete student is in the store: its checkpoints are no longer needed.
    shutil.rmtree(work_dir, ignore_errors=True)
    return artifact
