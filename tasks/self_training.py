"""Self-training: in rounds the student is sampled on training prompts, and SFT learns what is verified as right."""

import logging
from itertools import cycle, islice
from typing import Final

from stillhouse.config import DistillConfig, JudgeConfig, RolloutsConfig, SelectionConfig, ToolsConfig
from stillhouse.dataset.difficulty import student_rollouts
from stillhouse.errors import InputError, NothingKept
from stillhouse.rollouts.summary import summarise
from stillhouse.store import digest
from stillhouse.store.records import read_metadata, read_prompts
from stillhouse.tools import Toolbox
from stillhouse.types import Artifact, JsonObject, Model
from stillhouse.verification import examine_trajectory
from tasks.dataset import build_dataset
from tasks.prompts import PromptSets, metadata_file, prompts_file, write_metadata
from tasks.remote.flow_run_stage import call_stage_on
from tasks.rollouts import Rollouts
from tasks.run.context import Run, RunContext
from tasks.run.interruption import run_until_done
from tasks.run.stage import Stage
from tasks.sampling import TRAJECTORIES_FILE, check_failures, sample
from tasks.training import train_sft

OWN_ROLLOUTS: Final = Stage(
    "own_rollouts", version=1, result="{right} of {sampled} right", foreseen=False, is_remote=True
)
_logger = logging.getLogger("stillhouse.self_training")


def self_train(start: Model, prompts: PromptSets, dataset: Artifact | None, config: DistillConfig, run: Run) -> Model:
    """Train `start` in rounds on its own right trajectories, beside the `dataset` of SFT.

    Raises InputError if nothing verifies the answers; else as its stages.
    """
    student, rows = start, list[Artifact]()
    for number in range(config.self_training.num_rounds):
        with run.recorded_as("own "):
            right = sample_right(student, prompts, number, config, run)
            figures = {f"self_training/{name}": right.facts[name] for name in ("sampled", "right")}
            run.record.log_metrics(figures, step=number)
            try:
                if not right.shards:
                    raise NothingKept("no trajectory of the student is right")
                rows.append(build_dataset(right, prompts, _kept_config(config), run))
            except NothingKept as error:
                _logger.warning("round %d: the student stays as it is: %s", number + 1, error)
                continue
        student = train_sft(student, dataset, _learning_config(config, dataset), run, own_rows=rows)
    return student


def sample_right(student: Model, prompts: PromptSets, number: int, config: DistillConfig, run: Run) -> Rollouts:
    """Return the student's right trajectories of round `number`, from 0."""
    teacher = config.rollouts
    kept = {"system_prompt": teacher.system_prompt, "response_schema": teacher.response_schema}
    return call_stage_on(
        config.runtime.training_deployment,
        OWN_ROLLOUTS,
        run,
        label="own rollouts",
        student=student,
        prompts=prompts.train,
        metadata=prompts.train_metadata,
        number=number,
        count=config.self_training.prompts_per_round,
        rollouts=student_rollouts(teacher, 1).model_copy(update={**kept, "seed": (teacher.seed or 0) + number}),
        tools=config.tools.model_copy(update={"rewards_file": None}),
        tool_schemas=digest(Toolbox.from_config(config.tools).schemas()),
    )


def _kept_config(config: DistillConfig) -> DistillConfig:
    """Return the config without what chooses among several rollouts of the teacher."""
    dataset = config.dataset
    changes = {
        "selection": SelectionConfig(),
        "judge": JudgeConfig(),
        "labels": dataset.labels.model_copy(update={"student_samples": 0}),
        "filters": dataset.filters.model_copy(update={"student_pass_rate": None}),
        # A round's only row is not to end up in the validation.
        "validation_fraction": 0.0,
    }
    return config.model_copy(update={"dataset": dataset.model_copy(update=changes)})


def _learning_config(config: DistillConfig, dataset: Artifact | None) -> DistillConfig:
    changes: JsonObject = {"num_epochs": config.self_training.num_epochs, "loss": "nll"}
    if dataset is None:
        changes["dataset_weight"] = 0.0
    return config.model_copy(update={"sft": config.sft.model_copy(update=changes)})


@OWN_ROLLOUTS.made_by
def own_rollouts_task(
    student: Model,
    prompts: Artifact,
    metadata: Artifact,
    number: int,
    count: int,
    rollouts: RolloutsConfig,
    tools: ToolsConfig,
    tool_schemas: str,
    key: str,
    context: RunContext,
) -> Rollouts:
    """Sample the student on the prompts of a round, and keep what is verified as right."""
    every = list(read_prompts(prompts_file(prompts)))
    taken = {prompt.id: prompt for prompt in islice(cycle(every), number * count, number * count + count)}
    rows = read_metadata(metadata_file(metadata))
    given = {prompt: rows[prompt].metadata for prompt in taken}
    sampled = run_until_done(
        sample(
            list(taken.values()), student, rollouts, tools, context, stage=OWN_ROLLOUTS.name, part=key, metadata=given
        )
    )
    check_failures(sampled, context.runtime.failure_budget)
    verdicts = [examine_trajectory(one, rows[one.prompt_id]).verified for one in sampled.trajectories]
    if all(verdict is None for verdict in verdicts):
        raise InputError(
            f"self_training: nothing verifies any of the {len(verdicts)} trajectories of round {number + 1}. Give "
            "prompts an expected_answer and a prompts.verifier that compares with it (not `judge`), or leave "
            "self_training out"
        )
    right = [one for one, verdict in zip(sampled.trajectories, verdicts, strict=True) if verdict]
    store = context.store
    shard = store.write_rows(OWN_ROLLOUTS.name, digest(key), TRAJECTORIES_FILE, right, summarise(right))
    known = write_metadata(store, [rows[trajectory.prompt_id] for trajectory in right])
    facts = {"sampled": len(sampled.trajectories), "right": len(right)}
    return Rollouts(shards=(shard,) if right else (), metadata=(known,), sampling=None, facts=facts)
