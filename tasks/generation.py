"""From prompts to a dataset: rollouts, then rows; with a target number of rows, in rounds until it is met.

Each shard of prompts has a quota of rows, and sampling it stops once so many pass the filters. Filters over the whole
set (duplicates, a judge, selection) may still leave the dataset short; then quotas rise by the missing rows, and
sampling continues with the earlier completions from the journal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from prefect import get_run_logger
from prefect.events import emit_event

from stillhouse.config import DistillConfig
from stillhouse.dataset.acceptance import Acceptance
from stillhouse.dataset.build import max_row_tokens
from stillhouse.dataset.labelling.label import Labelling
from stillhouse.errors import NothingKept
from stillhouse.types import Artifact
from tasks.dataset import DATASET, DUPLICATES, build_dataset
from tasks.difficulty import DIFFICULTY
from tasks.judging import JUDGE
from tasks.labels import LABELS
from tasks.prompts import PromptSets
from tasks.rollouts import ROLLOUTS, Rollouts, ShardTarget, sample_teacher
from tasks.run.context import Run
from tasks.run.flow_run_page import show_dataset
from tasks.run.prefect_api import DATASET_CREATED
from tasks.trajectory_import import import_trajectories

DATASET_STAGES: Final = (ROLLOUTS, LABELS, JUDGE, DIFFICULTY, DUPLICATES, DATASET)


def needs_dataset(config: DistillConfig) -> bool:
    """Return whether SFT learns the dataset that the config describes, and not `sft.sources` alone."""
    return config.sft.dataset_weight > 0.0


def generate_dataset(prompts: PromptSets, config: DistillConfig, run: Run) -> Artifact:
    """Build a dataset of the teacher's rollouts, or of `rollouts.trajectories_file`; raise NothingKept for no row."""
    dataset = _generate(prompts, config, run)
    show_dataset(dataset, run)
    if any(outcome.name == "dataset" and not outcome.cached for outcome in run.stages):
        emit_event(
            DATASET_CREATED,
            resource={"prefect.resource.id": f"stillhouse.dataset.{dataset.fingerprint}"},
            payload={
                "uri": dataset.uri,
                "fingerprint": dataset.fingerprint,
                "num_rows": dataset.num_rows,
                "config": run.config.model_dump(mode="json"),
            },
        )
    return dataset


def _generate(prompts: PromptSets, config: DistillConfig, run: Run) -> Artifact:
    if config.rollouts.trajectories_file is not None:
        rollouts = import_trajectories(config.rollouts.trajectories_file, prompts, run)
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


def _shard_targets(quotas: "ShardQuotas", shards: Sequence[Artifact], config: DistillConfig) -> list[ShardTarget]:
    quotas.share([shard.num_rows for shard in shards])
    acceptance = Acceptance(
        # Whether a trajectory passes does not depend on who sampled it.
        labelling=Labelling.of(config.dataset, tools=config.tools, student=config.student),
        dataset=config.dataset,
        max_tokens=max_row_tokens(config.dataset, config.student.max_length),
    )
    per_prompt = config.dataset.selection.rows_per_prompt
    return [
        ShardTarget(rows=quota.rows, max_candidates=quota.max_candidates, per_prompt=per_prompt, acceptance=acceptance)
        for quota in quotas.shards
    ]


@dataclass(slots=True)
class ShardQuota:
    """Accepted rows that one shard of prompts should contribute, and most rollouts for them."""

    num_prompts: int
    rows: int
    max_candidates: int | None


class ShardQuotas:
    """The quotas of all shards for `target` accepted rows, from at most `max_candidates` rollouts in all."""

    def __init__(self, target: int, max_candidates: int | None) -> None:
        self.shards: list[ShardQuota] = []
        self._target = target
        self._max_candidates = max_candidates

    def share(self, sizes: Sequence[int]) -> None:
        """Divide the target among the shards by their number of prompts; later calls change nothing."""
        if not self.shards:
            rows = _parts(self._target, sizes)
            most = [None] * len(sizes) if self._max_candidates is None else _parts(self._max_candidates, sizes)
            self.shards = [ShardQuota(*quota) for quota in zip(sizes, rows, most, strict=True)]

    def raise_by(self, missing: int, rollouts: Rollouts) -> bool:
        """Add the missing rows to the quotas of shards that can sample more; False if none can.

        A shard that missed its quota without reaching its `max_candidates` has no candidates left.
        """
        counts = [(shard.facts["accepted"], shard.facts["trajectories"]) for shard in rollouts.shards]
        able = [
            quota
            for quota, (accepted, candidates) in zip(self.shards, counts, strict=True)
            if accepted >= quota.rows or candidates == quota.max_candidates
        ]
        spare = None
        if self._max_candidates is not None:
            spare = self._max_candidates - sum(candidates for _, candidates in counts)
            for quota, (_, candidates) in zip(self.shards, counts, strict=True):
                quota.max_candidates = candidates
        if not able or spare == 0:
            return False
        sizes = [quota.num_prompts for quota in able]
        for quota, rows in zip(able, _parts(missing, sizes), strict=True):
            quota.rows += rows
        if spare is not None:
            for quota, candidates in zip(able, _parts(spare, sizes), strict=True):
                quota.max_candidates = (quota.max_candidates or 0) + candidates
        return True


def _parts(total: int, sizes: Sequence[int]) -> list[int]:
    """Return `total` in whole parts nearly proportional to `sizes`, each at least 1 while `total` lasts."""
    parts = []
    left, weight = total, sum(sizes)
    for size in sizes:
        part = min(left, max(1, round(left * size / weight))) if weight else 0
        parts.append(part)
        left -= part
        weight -= size
    return parts
