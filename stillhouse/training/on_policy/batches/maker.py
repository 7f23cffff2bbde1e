"""One batch of rollouts: sampled, and scored and rewarded group by group while others are still sampled."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from stillhouse.config import OnPolicyConfig
from stillhouse.training.loop.row_order import distinct_rows
from stillhouse.training.on_policy.batches.batch import RolloutBatch
from stillhouse.training.on_policy.batches.groups import EndedGroups
from stillhouse.training.on_policy.batches.scoring import Scoring
from stillhouse.training.on_policy.batches.time_split import TimeSplit
from stillhouse.training.on_policy.loss.advantages import credited
from stillhouse.training.on_policy.loss.aggregation import weighted
from stillhouse.training.on_policy.loss.objective import Objective
from stillhouse.training.on_policy.monitoring.measures import (
    measure_credit,
    measure_rewards,
    measure_routes,
    measure_trajectories,
)
from stillhouse.training.on_policy.rewards import Rewards, TrajectoryReward
from stillhouse.training.on_policy.sampling.engine import Engine, Engines
from stillhouse.training.on_policy.sampling.sampler import Sampler
from stillhouse.training.on_policy.scored import ScoredSample
from stillhouse.training.on_policy.teachers.routing import Teachers
from stillhouse.training.on_policy.trajectories import SampledTrajectory
from stillhouse.types import Prompt, PromptMetadata

Shown = Callable[[int, Sequence[SampledTrajectory], Sequence[ScoredSample], Sequence[TrajectoryReward]], None]
"""Told of each batch that was made: its index, and what its page shows."""


@dataclass(frozen=True, slots=True)
class BatchMaker:
    """Makes batches of rollouts.

    Args:
        prompts: sampled from, in an order drawn for each pass over them.
        metadata: by prompt id; may lack any.
        sampler: makes trajectories.
        engines: sample completions.
        teachers: score them.
        rewards: of the user and of verification.
        objective: what will be trained on.
        config: sizes, coefficients, seed.
        show: told of each batch.
        groups: holds the groups that have ended of a batch under way; None keeps none.
    """

    prompts: Sequence[Prompt]
    metadata: Mapping[str, PromptMetadata]
    sampler: Sampler
    engines: Engines
    teachers: Teachers
    rewards: Rewards
    objective: Objective
    config: OnPolicyConfig
    show: Shown
    groups: Path | None = None

    def begin(self, index: int, policy_version: int) -> Callable[[], RolloutBatch]:
        """Hands the weights, which have had `policy_version` updates, to an engine; the rest is done when called."""
        split = TimeSplit()
        stack = ExitStack()
        with split.of("sync"):
            engine = stack.enter_context(self.engines.engine(policy_version))
        return lambda: self._make(index, policy_version, engine, stack, split)

    def _make(
        self, index: int, policy_version: int, engine: Engine, stack: AbstractContextManager[object], split: TimeSplit
    ) -> RolloutBatch:
        rows = distinct_rows(index, self.config.prompts_per_step, len(self.prompts), self.config.seed)
        work = _Work(self, [self.prompts[row] for row in rows], split)
        with stack:
            trajectories = work.sample(engine, index, policy_version)
        with split.of("score"):
            samples = work.scoring.finish()
        with split.of("reward"):
            rewards = work.collect_rewards(trajectories)
        # A prompt that fills the context has nothing to train on; it stays in the share of truncated ones.
        totals = [reward.total for one, reward in zip(trajectories, rewards, strict=True) if one.num_turns > 0]
        samples = credited(samples, totals, self.config)
        self.show(index, trajectories, samples, rewards)
        labels = {prompt.id: self.teachers.label(self.metadata.get(prompt.id)) for prompt in work.prompts}
        reported = {key: label if label in self.objective.routes else None for key, label in labels.items()}
        metrics = {
            **measure_trajectories(trajectories),
            **measure_rewards(trajectories, rewards),
            **measure_routes(trajectories, rewards, self.config.route_by, reported),
            **measure_credit(samples, self.config),
            **split.metrics(),
        }
        return RolloutBatch(index, policy_version, self._parts(work.prompts, samples), metrics)

    def _parts(self, prompts: Sequence[Prompt], samples: Sequence[ScoredSample]) -> list[list[ScoredSample]]:
        """Whole groups, shared out over the substeps."""
        size = len(prompts) // self.config.num_substeps
        part_of = {prompt.id: number // size for number, prompt in enumerate(prompts)}
        parts: list[list[ScoredSample]] = [[] for _ in range(self.config.num_substeps)]
        for sample in samples:
            parts[part_of[sample.prompt_id]].append(sample)
        return [weighted(part, self.config) for part in parts]


@dataclass(slots=True)
class _Work:
    """What is under way for one batch."""

    maker: BatchMaker
    prompts: Sequence[Prompt]
    split: TimeSplit
    scoring: Scoring = field(init=False)
    _rewards: dict[str, Future[list[TrajectoryReward]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        maker = self.maker
        self.scoring = Scoring(maker.teachers, maker.metadata, [prompt.id for prompt in self.prompts], maker.objective)

    def sample(self, engine: Engine, index: int, policy_version: int) -> list[SampledTrajectory]:
        """All trajectories, in the order of their prompts; each group goes on to its scores as soon as it is whole."""
        maker = self.maker
        ended = None if maker.groups is None else EndedGroups.of_batch(maker.groups, index)
        kept = {} if ended is None else ended.load(self.prompts)
        for group in kept.values():
            self._take(group)

        def on_group(group: list[SampledTrajectory]) -> None:
            if ended is not None:
                ended.add(group)
            self._take(group)

        missing = [prompt for prompt in self.prompts if prompt.id not in kept]
        with self.split.of("sample"):
            sampled = maker.sampler.sample(engine, missing, index, on_group, policy_version=policy_version)
        by_prompt = {one.id: kept.get(one.id, []) for one in self.prompts}
        for trajectory in sampled:
            by_prompt[trajectory.prompt_id].append(trajectory)
        return [trajectory for group in by_prompt.values() for trajectory in group]

    def collect_rewards(self, trajectories: Sequence[SampledTrajectory]) -> list[TrajectoryReward]:
        """The reward of each trajectory."""
        found = {prompt_id: iter(future.result()) for prompt_id, future in self._rewards.items()}
        return [next(found[trajectory.prompt_id]) for trajectory in trajectories]

    def _take(self, group: list[SampledTrajectory]) -> None:
        self._rewards[group[0].prompt_id] = self.maker.rewards.start(group, self.maker.metadata)
        with self.split.of("score"):
            self.scoring.take(group)
