"""Judging: a language model grades the trajectories."""

from collections import defaultdict
from pathlib import Path

from stillhouse.config import DistillConfig, JudgeConfig, ModelRole, ToolsConfig
from stillhouse.dataset.judge import combine, count_lost, count_outcomes, judge_rollouts, question_of, write_judgements
from stillhouse.dataset.judgement import judgement_reader
from stillhouse.dataset.schema import JUDGE_FILE
from stillhouse.inference.batch import require_batchable
from stillhouse.rollouts.summary import add_up
from stillhouse.store import digest
from stillhouse.store.records import read_metadata, read_trajectories
from stillhouse.types import Artifact, Model, Trajectory
from tasks.cache.shards import measure_shards
from tasks.models import teacher_model
from tasks.prompts import metadata_file
from tasks.rollouts import Rollouts
from tasks.run.context import Run, RunContext
from tasks.run.progress import PartProgress
from tasks.run.stage import Stage
from tasks.sampling import TRAJECTORIES_FILE, Sampled, check_failures, sample

JUDGE = Stage(
    "judge",
    version=2,
    result="{judged} judged",
    left_out={"lost_judgements": "lost"},
    when=lambda config: config.dataset.judge.enabled,
)


def judge(rollouts: Rollouts, config: DistillConfig, run: Run) -> list[Artifact] | None:
    """Grade each shard's trajectories; return artifacts that hold `JUDGE_FILE`, or None if the judge is off.

    Raises ConfigError if the rubric cannot be used, or the judge needs what batch endpoints do not support; else as
    `sample` and `check_failures`.
    """
    if not JUDGE.when(config):
        return None
    judging = config.dataset.judge
    require_batchable(judging.model, judge_rollouts(judging, verdict=True), ToolsConfig(), ModelRole.JUDGE)
    return measure_shards(
        JUDGE,
        run,
        rollouts.shards,
        num_steps=judging.num_samples,
        shard_inputs=rollouts.metadata_of,
        judge=judging,
        model=teacher_model(judging.model),
    )


@JUDGE.made_by
async def judge_task(
    shard: Artifact, metadata: Artifact, judge: JudgeConfig, model: Model, key: str, context: RunContext
) -> Artifact:
    """Grade one shard. Every completion goes to the journal, so a failure loses none."""
    prompt_metadata = read_metadata(metadata_file(metadata))
    trajectories = read_trajectories(Path(shard.uri) / TRAJECTORIES_FILE)
    # None where there is nothing to grade.
    questions = [question_of(row, prompt_metadata.get(row.prompt_id), judge) for row in trajectories]
    judgements: defaultdict[str, list[Trajectory]] = defaultdict(list)
    batches: list[Sampled] = []
    for verdict in (False, True):
        distinct = {q.prompt.id: q.prompt for q in questions if q is not None and q.verdict is verdict}
        if distinct:
            batches.append(
                await sample(
                    list(distinct.values()),
                    model,
                    judge_rollouts(judge, verdict=verdict),
                    ToolsConfig(),
                    context,
                    stage="judge",
                    part=f"{key}/{'verdicts' if verdict else 'grades'}",
                    teacher=judge.model,
                    role=ModelRole.JUDGE,
                    read=judgement_reader(judge, verdict=verdict),
                )
            )
    sampled = Sampled([row for batch in batches for row in batch.trajectories], add_up([b.facts for b in batches]))
    # Rows without a question count as done.
    num_steps = len(questions) * judge.num_samples
    PartProgress("judge", f"{key}/not asked", num_steps - len(sampled.trajectories)).skip()
    check_failures(sampled, context.runtime.failure_budget)
    for judgement in sampled.trajectories:
        judgements[judgement.prompt_id].append(judgement)
    rows = [None if question is None else combine(judgements[question.prompt.id], judge) for question in questions]
    return context.store.write(
        "judge",
        digest(key),
        lambda folder: (
            write_judgements(folder / JUDGE_FILE, rows),
            {**sampled.facts, **count_outcomes(rows), **count_lost(sampled.trajectories)},
        ),
    )
