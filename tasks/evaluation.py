"""Evaluation: one model on the held-out prompts, through the same rollout engine as the teacher's rollouts."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from stillhouse.config import DistillConfig, EvaluationConfig, OnPolicyTeacher, TeacherConfig, ToolsConfig
from stillhouse.errors import InputError
from stillhouse.evaluation.log_ratio import ServedBy
from stillhouse.evaluation.measure import mean_rewards, measure
from stillhouse.evaluation.sampling import evaluation_rollouts
from stillhouse.evaluation.teacher_kl import teacher_kl
from stillhouse.store import digest
from stillhouse.store.fingerprint import file_sha256
from stillhouse.store.records import read_metadata, read_prompts, write_jsonl
from stillhouse.store.runs import TRAINED
from stillhouse.tools.reward_set import RewardSet
from stillhouse.tools.toolbox import Toolbox
from stillhouse.types import Artifact, Model
from tasks.models import student_scorer
from tasks.prompts import PromptSets, metadata_file, prompts_file
from tasks.remote.flow_run_stage import call_stage_on
from tasks.run.context import Run, RunContext
from tasks.run.interruption import run_until_done
from tasks.run.progress import progress
from tasks.run.stage import EVALUATION_OF, Stage
from tasks.sampling import TRAJECTORIES_FILE, check_failures, sample


def _names(earlier: Sequence[str]) -> list[str]:
    students = [name for name in TRAINED if name in earlier]
    return [f"{EVALUATION_OF}{model}" for model in ("base", *students, "teacher")]


EVALUATION = Stage("evaluation", version=4, result="{trajectories} done, {failed} failed", names=_names, is_remote=True)


def evaluate(model: Model, prompts: PromptSets, config: DistillConfig, run: Run) -> Artifact:
    """Sample `model` on the held-out prompts; the facts are the metrics of `stillhouse.evaluation.measure`.

    A student is evaluated where it is trained: on `runtime.training_deployment`, if that is set. Raises InputError if
    no prompt was held out; TrainingError if the flow run that evaluates it failed, was cancelled, or crashed too often.
    """
    if prompts.held_out.num_rows == 0:
        raise InputError(
            f"prompts.held_out_fraction = {config.prompts.held_out_fraction}: no prompt was held out, so there is "
            "nothing to evaluate on. Raise it, give more prompts, or set evaluation.enabled to false"
        )
    is_behind_endpoint = model.name == "teacher" and config.teacher.base_url is not None
    return call_stage_on(
        # An endpoint needs no GPU of ours.
        None if is_behind_endpoint else config.runtime.training_deployment,
        EVALUATION,
        run,
        label=f"{EVALUATION_OF}{model.name}",
        model=model,
        teacher=config.teacher if model.name == "teacher" else None,
        prompts=prompts.held_out,
        metadata=prompts.held_out_metadata,
        evaluation=config.evaluation.model_copy(update={"suites": ()}),  # which are stages of their own
        scorer=None if model.name == "teacher" else student_scorer(config),
        tools=config.tools,
        rewards_sha256=rewards_digest(config.tools),
        tool_schemas=digest(Toolbox.from_config(config.tools).schemas()),
        system_prompt=config.rollouts.system_prompt,
    )


def rewards_digest(tools: ToolsConfig) -> str | None:
    """Return SHA-256 of the rewards file, loaded so that ConfigError comes before sampling; None if there is none."""
    if tools.rewards_file is None:
        return None
    RewardSet.from_config(tools)
    return file_sha256(Path(tools.rewards_file))


@EVALUATION.made_by
def evaluation_task(
    model: Model,
    teacher: TeacherConfig | None,
    prompts: Artifact,
    metadata: Artifact,
    evaluation: EvaluationConfig,
    scorer: Model | OnPolicyTeacher | None,
    tools: ToolsConfig,
    rewards_sha256: str | None,
    tool_schemas: str,
    system_prompt: str | None,
    key: str,
    context: RunContext,
) -> Artifact:
    """Sample the model on the held-out prompts, verify its answers, and score its tokens with the teacher."""
    rows = list(islice(read_prompts(prompts_file(prompts)), evaluation.max_prompts))
    config = evaluation_rollouts(evaluation, system_prompt, record_tokens=scorer is not None)
    stage = f"evaluate {model.name}"
    sampled = run_until_done(sample(rows, model, config, tools, context, stage=stage, part=key, teacher=teacher))
    check_failures(sampled, context.runtime.failure_budget)
    progress().say("verifying answers")
    prompt_metadata = read_metadata(metadata_file(metadata))
    facts = {**sampled.facts, **measure(sampled.trajectories, prompt_metadata)}
    if tools.rewards_file is not None:
        rewards = RewardSet.from_config(tools)
        facts |= run_until_done(mean_rewards(sampled.trajectories, prompt_metadata, rewards))
        rewards.failures.check(tools.rewards_file, context.runtime.failure_budget)
    facts["teacher_kl"] = None
    if scorer is not None:
        progress().say(f"scoring with {scorer.name}")
        reader: str | ServedBy = (
            scorer.ref
            if isinstance(scorer, Model)
            else ServedBy(teacher=scorer, student_ref=model.ref, budget=context.budget)
        )
        facts["teacher_kl"] = teacher_kl(
            sampled.trajectories, reader, context.runtime, temperature=evaluation.temperature
        )
    return context.store.write(
        "evaluation", digest(key), lambda folder: (write_jsonl(folder / TRAJECTORIES_FILE, sampled.trajectories), facts)
    )
