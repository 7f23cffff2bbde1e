"""From prompts to a dataset: rollouts, then rows; with a target number of rows, in rounds until it is met.

Each shard of prompts has a quota of rows, and sampling it stops once so many pass the filters. Filters over the whole
set (duplicates, a judge, selection) may still leave the dataset short; then quotas rise by the missing rows, and
sampling continues with the earlier answers from the journal.
"""

from collections.abc import Sequence

from prefect import get_run_logger

from stillhouse.config import DistillConfig
from stillhouse.dataset.acceptance import Acceptance
from stillhouse.dataset.build import max_row_tokens
from stillhouse.dataset.labelling.label import Labelling
from stillhouse.errors import NothingKept
from stillhouse.types import Artifact
from tasks.dataset import build_dataset
from tasks.prompts import PromptSets
from tasks.rollout_shard import ShardTarget
from tasks.rollouts import sample_teacher
from tasks.run.context import Run
from tasks.run.flow_run_page import show_dataset
from tasks.run.prefect_api import DATASET_CREATED, emit
from tasks.shard_quotas import ShardQuotas
from tasks.trajectory_import import import_trajectories


def generate_dataset(prompts: PromptSets, config: DistillConfig, run: Run) -> Artifact:
    """The training rows of a run, from its teacher's rollouts or from those of `rollouts.trajectories_file`.

    Raises:
        NothingKept: no row is kept; the message holds the funnel.
        FailureBudgetExceeded, EndpointError: as `tasks.rollouts.sample_teacher`.
    """
    dataset = _generate(prompts, config, run)
    show_dataset(dataset, run)
    _emit_dataset_created(run)
    return dataset


def _emit_dataset_created(run: Run) -> None:
    """Emits an event if this run made the dataset, rather than reused it."""
    for outcome in run.stages:
        if outcome.name == "dataset" and not outcome.cached:
            dataset = outcome.result
            payload = {
                "uri": dataset.uri,
                "fingerprint": dataset.fingerprint,
                "num_rows": dataset.num_rows,
                "config": run.config.model_dump(mode="json"),
            }
            emit(DATASET_CREATED, f"stillhouse.dataset.{dataset.fingerprint}", payload)


def _generate(prompts: PromptSets, config: DistillConfig, run: Run) -> Artifact:
    if config.rollouts.trajectories_file is not None:
        rollouts = import_trajectories(config.rollouts.trajectories_file, prompts, config.rollouts.failure_budget, run)
        return build_dataset(rollouts, prompts, config, run)
    target = config.dataset.selection.target_rows
    if target is None:
        return build_dataset(sample_teacher(prompts, config, run), prompts, config, run)
    quotas = ShardQuotas(target, config.dataset.selection.max_candidates)
    while True:
        rollouts = sample_teacher(prompts, config, run, wanted=lambda shards: _shard_targets(quotas, shards, config))
        try:
            dataset = build_dataset(rollouts, prompts, config, run)
        except NothingKept:
            if quotas.raise_by(target, rollouts):
                continue
            raise
        missing = target - dataset.num_rows
        if missing > 0 and quotas.raise_by(missing, rollouts):
            continue
        if missing > 0:
            get_run_logger().warning(
                "%d of %d rows are there and no candidate is left (%d were sampled): raise rollouts.num_samples or "
                "dataset.selection.max_candidates, give more prompts, or loosen dataset.filters",
                dataset.num_rows,
                target,
                rollouts.facts["trajectories"],
            )
        return dataset


def _shard_targets(quotas: ShardQuotas, shards: Sequence[Artifact], config: DistillConfig) -> list[ShardTarget]:
    quotas.share([shard.num_rows for shard in shards])
    acceptance = Acceptance(
        # Whether a trajectory passes does not depend on who sampled it.
        labelling=Labelling.of(config.dataset, tools=config.tools, student=config.student.model),
        dataset=config.dataset,
        max_tokens=max_row_tokens(config.dataset, config.student.max_length),
    )
    per_prompt = config.dataset.selection.rows_per_prompt
    return [
        ShardTarget(rows=quota.rows, max_candidates=quota.max_candidates, per_prompt=per_prompt, acceptance=acceptance)
        for quota in quotas.shards
    ]
