"""Judging: a language model grades the trajectories. A task run is a shard; shards share an event loop and a limit."""

import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect import task

from stillhouse.config import DistillConfig, JudgeConfig, ModelRole, ToolsConfig
from stillhouse.dataset.judge import Question, combine, count_outcomes, judge_rollouts, question_of, write_judgements
from stillhouse.dataset.schema import JUDGE_FILE
from stillhouse.inference.batch import require_batchable
from stillhouse.rollouts.summary import add_up
from stillhouse.store import digest
from stillhouse.store.records import read_metadata, read_trajectories
from stillhouse.types import Artifact, Model, Trajectory
from tasks.cache.shards import map_shards, record_shards
from tasks.cache.stage import CACHED_STAGE, Stage
from tasks.models import endpoint_of, teacher_model
from tasks.prompts import metadata_file
from tasks.rollouts import Rollouts
from tasks.run.context import Run, RunContext
from tasks.run.interruption import run_until_done
from tasks.run.progress import PartProgress, rollout_stage
from tasks.sampling import TRAJECTORIES_FILE, Sampled, check_failures, sample

JUDGE = Stage("judge", version=1)


def judge(rollouts: Rollouts, config: DistillConfig, run: Run) -> list[Artifact] | None:
    """Grades each shard's trajectories; returns artifacts that hold `JUDGE_FILE`, or None if the judge is off.

    Raises:
        ConfigError: the rubric cannot be used, or the judge needs what batch endpoints do not support.
        FailureBudgetExceeded: more judgements of a shard failed than the config allows.
        EndpointError: the judge's endpoint cannot be used.
        BudgetReached: the run's budget is spent.
    """
    judging = config.dataset.judge
    if not judging.enabled:
        return None
    require_batchable(judging.model, judge_rollouts(judging, verdict=True), ToolsConfig(), ModelRole.JUDGE)
    started = time.monotonic()
    inputs: dict[str, Any] = {"judge": judging, "model": teacher_model(judging.model)}

    def on_result(artifact: Artifact, cached: bool) -> None:
        if cached:
            PartProgress("judge", artifact.uri, artifact.num_rows * judging.num_samples).skip()

    work = map_shards(
        JUDGE, judge_task, run, rollouts.shards, on_result=on_result, shard_inputs=rollouts.metadata_of, **inputs
    )
    with rollout_stage("judge", judging.num_samples * sum(shard.num_rows for shard in rollouts.shards)):
        results = run_until_done(work)
    return record_shards(JUDGE, results, run, seconds=time.monotonic() - started)


@task(name="judge", **CACHED_STAGE)
async def judge_task(
    shard: Artifact, metadata: Artifact, judge: JudgeConfig, model: Model, key: str, context: RunContext
) -> Artifact:
    """Grades one shard. Every answer goes to the journal, so a failure loses none."""
    questions = _questions(Path(shard.uri) / TRAJECTORIES_FILE, metadata, judge)
    sampled = await _ask([question for question in questions if question is not None], judge, model, key, context)
    num_asked = len(sampled.trajectories)
    # Rows without a question count as done.
    PartProgress("judge", f"{key}/not asked", len(questions) * judge.num_samples - num_asked).skip()
    check_failures(sampled, judge.failure_budget)
    judgements: defaultdict[str, list[Trajectory]] = defaultdict(list)
    for judgement in sampled.trajectories:
        judgements[judgement.prompt_id].append(judgement)
    rows = [None if question is None else combine(judgements[question.prompt.id], judge) for question in questions]
    return context.store.write(
        "judge",
        digest(key),
        lambda folder: (write_judgements(folder / JUDGE_FILE, rows), {**sampled.facts, **count_outcomes(rows)}),
    )


def _questions(trajectories: Path, metadata: Artifact, judge: JudgeConfig) -> list[Question | None]:
    """The question about each trajectory; None where there is nothing to grade."""
    rows = read_metadata(metadata_file(metadata))
    return [
        question_of(trajectory, rows.get(trajectory.prompt_id), judge) for trajectory in read_trajectories(trajectories)
    ]


async def _ask(
    questions: Sequence[Question], judge: JudgeConfig, model: Model, key: str, context: RunContext
) -> Sampled:
    """Samples the judgements of each distinct question: first those without a verdict, then those with one."""
    batches: list[Sampled] = []
    for verdict in (False, True):
        distinct = {question.prompt.id: question.prompt for question in questions if question.verdict is verdict}
        if not distinct:
            continue
        part = f"{key}/{'verdicts' if verdict else 'grades'}"
        watcher = PartProgress("judge", part, len(distinct) * judge.num_samples)
        async with endpoint_of(model, judge.model, context.runtime, ModelRole.JUDGE) as endpoint:
            batches.append(
                await sample(
                    list(distinct.values()),
                    endpoint,
                    judge_rollouts(judge, verdict=verdict),
                    ToolsConfig(),
                    context,
                    watcher,
                    part=part,
                    teacher=judge.model,
                )
            )
    facts = add_up([batch.facts for batch in batches])
    return Sampled([trajectory for batch in batches for trajectory in batch.trajectories], facts)
