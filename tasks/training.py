"""Training: SFT and on-policy distillation, each in a guarded process that resumes from its last checkpoint.

Where `runtime.training_deployment` names a deployment, that process belongs to a flow run of it.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from stillhouse.agent.turns import TurnRules
from stillhouse.config import DistillConfig, OnPolicyConfig, SftConfig, SftSource, StudentConfig, ToolsConfig
from stillhouse.inference.budget import remaining_budget
from stillhouse.store import digest, file_sha256
from stillhouse.tools.toolbox import Toolbox
from stillhouse.training.job import loss_sha256, teacher_identities
from stillhouse.training.sft.sources import source_fingerprint
from stillhouse.types import Artifact, JsonObject, Model
from tasks.models import trained_student
from tasks.pair.stage import PAIR, check_pair
from tasks.prompts import PromptSets, metadata_file, prompts_file
from tasks.remote.flow_run_stage import call_stage_on
from tasks.run.context import Run, RunContext
from tasks.run.stage import Stage
from tasks.scoring import SCORES, score_rows
from tasks.training_job import run_training_job

_logger = logging.getLogger("stillhouse.training")

_LEFT_OUT = {
    "rejected_rows": "rows rejected",
    "truncated_rows": "rows cut",
    "dropped_rows": "too long",
    "unlearnt_rows": "with nothing to learn",
    "num_reward_errors": "reward errors",
}
SFT = Stage("sft", version=4, result="{steps} steps", left_out=_LEFT_OUT, is_remote=True)
STUDENT_ROLLOUTS = Stage(
    "student_rollouts",
    version=2,
    result="{rows} sampled",
    left_out=_LEFT_OUT,
    when=lambda config: config.on_policy.source == "rollouts",
    is_remote=True,
)
ON_POLICY = Stage("on_policy", version=6, result="{steps} steps", left_out=_LEFT_OUT, is_remote=True)
SOFT_TARGETS: Final = SCORES.only_if(lambda config: config.sft.loss == "kl")
SFT_STAGES: Final = (SOFT_TARGETS, SFT)
ON_POLICY_STAGES: Final = (PAIR, STUDENT_ROLLOUTS, ON_POLICY)


def train_sft(
    start: Model, dataset: Artifact | None, config: DistillConfig, run: Run, *, own_rows: Sequence[Artifact] = ()
) -> Model:
    """Fine-tune `start` on the dataset's kept rows and on `sft.sources`; `dataset` is None for the latter alone.

    `own_rows` are datasets of the student's own trajectories; with them the run records it as self-training.
    """
    scored: JsonObject = {"scores": score_rows(start, dataset, config, run)} if SOFT_TARGETS.when(config) else {}
    artifact = call_stage_on(
        config.runtime.training_deployment,
        SFT,
        run,
        label="self_training" if own_rows else None,
        start=start,
        dataset=dataset,
        sources=[source_fingerprint(source) for source in config.sft.sources],
        student=config.student,
        sft=config.sft,
        tools=config.tools if config.sft.trainer.generate_every_steps else None,
        **scored,
        **({"own_rows": list(own_rows), "own_weight": config.self_training.weight} if own_rows else {}),
    )
    if rejected := artifact.facts.get("first_rejected"):
        _logger.warning(
            "%d rows of sft.sources are not learnt; mend them, or give the message `weight` 0:\n  %s",
            artifact.facts["rejected_rows"],
            rejected,
        )
    return trained_student("self_training" if own_rows else "sft", artifact)


def train_on_policy(start: Model, prompts: PromptSets, config: DistillConfig, run: Run) -> Model:
    """Train `start` by on-policy distillation on the training prompts, or on what it samples of them beforehand."""
    check_pair(start, prompts, config, run)
    # Whether the pair was checked makes no other student: it stays out of the key.
    settings = config.on_policy.model_copy(update={"pair_check": "auto"})
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
    further = measured if settings.trainer.generate_every_steps else {}
    if settings.loss is not None:
        further["loss"] = loss_sha256(settings.loss)
    if STUDENT_ROLLOUTS.when(config):
        sampled = {**inputs, "on_policy": settings.without_optimiser, "trains": False}
        further["rollouts"] = call_stage_on(deployment, STUDENT_ROLLOUTS, run, **sampled)
    artifact = call_stage_on(deployment, ON_POLICY, run, **inputs, **further)
    return trained_student(ON_POLICY.name, artifact)


@SFT.made_by
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
    own_rows: Sequence[Artifact] = (),
    own_weight: float = 1.0,
) -> Artifact:
    """Train on rows. A training that was killed continues from its checkpoint."""
    further = (SftSource(path=rows.uri, weight=own_weight) for rows in own_rows)
    sft = sft.model_copy(update={"sources": (*sft.sources, *further)})
    job = {
        "method": "sft",
        "sft": sft,
        "dataset_folder": None if dataset is None else dataset.uri,
        "scores_folder": None if scores is None else scores.uri,
        "tools": tools or ToolsConfig(),
    }
    return run_training_job(job, start, student, SFT, key, context, context.runtime, logged_as="student")


@STUDENT_ROLLOUTS.made_by
@ON_POLICY.made_by
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
    trains: bool = True,
    loss: str | None = None,
) -> Artifact:
    """Train on the student's own samples, or only have them made and scored; resume like SFT."""
    stage = ON_POLICY if trains else STUDENT_ROLLOUTS
    job = {
        "method": stage.name,
        "on_policy": on_policy,
        "prompts_file": str(prompts_file(prompts)),
        "metadata_file": str(metadata_file(metadata)),
        "held_out_file": held_out and str(prompts_file(held_out)),
        "held_out_metadata_file": held_out_metadata and str(metadata_file(held_out_metadata)),
        "rollouts_folder": rollouts and rollouts.uri,
        "teacher_ref": default_teacher,
        "tools": tools,
        "system_prompt": system_prompt,
        "budget": remaining_budget(context.run_id, context.budget),
        "rules": rules,
    }
    runtime, logged_as = (context.runtime, "student") if trains else (context.runtime.in_one_process, None)
    return run_training_job(job, start, student, stage, key, context, runtime, logged_as=logged_as)
