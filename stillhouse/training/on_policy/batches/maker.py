"""One batch of rollouts: sampled, and scored and rewarded group by group while others are still sampled."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from stillhouse.config import OnPolicyConfig
from stillhouse.training.on_policy.batches.batch import RolloutBatch
from stillhouse.training.on_policy.batches.credit import teacher_shares, with_advantages, with_weights
from stillhouse.training.on_policy.batches.groups import FinishedGroups
from stillhouse.training.on_policy.batches.scoring import Scoring
from stillhouse.training.on_policy.batches.time_split import TimeSplit
from stillhouse.training.on_policy.monitoring.metrics import (
    measure_credit,
    measure_rewards,
    measure_routes,
    measure_trajectories,
)
from stillhouse.training.on_policy.objective import Objective
from stillhouse.training.on_policy.prompts import prompts_of_batch
from stillhouse.training.on_policy.rewards import RewardScorer, TrajectoryReward
from stillhouse.training.on_policy.sampling.engine import SamplingEngine, SamplingEngines
from stillhouse.training.on_policy.sampling.sampler import Sampler
from stillhouse.training.on_policy.scored import ScoredSample
from stillhouse.training.on_policy.teachers.router import TeacherRouter
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import Prompt, PromptMetadata

OnBatch = Callable[[int, Sequence[SampledTrajectory], Sequence[ScoredSample], Sequence[TrajectoryReward]], None]
"""Called with each finished batch: its index, trajectories, samples and rewards."""


@dataclass(frozen=True, slots=True)
class BatchMaker:
    """Makes batches of rollouts."""

    prompts: Sequence[Prompt]
    """Sampled from, in an order drawn for each pass over them."""
    metadata: Mapping[str, PromptMetadata]
    """By prompt id; may lack any."""
    sampler: Sampler
    engines: SamplingEngines
    teachers: TeacherRouter
    rewards: RewardScorer
    objective: Objective
    config: OnPolicyConfig
    show: OnBatch
    groups: Path | None = None
    """Folder for the finished groups of an unfinished batch; None stores none."""

    def begin(self, index: int, policy_version: int) -> Callable[[], RolloutBatch]:
        """Hand the current weights, of `policy_version` updates, to an engine; return the call that makes the batch."""
        split = TimeSplit()
        stack = ExitStack()
        with split.of("sync"):
            engine = stack.enter_context(self.engines.engine(policy_version))
        return lambda: self._make(index, policy_version, engine, stack, split)

    def _make(
        self,
        index: int,
        policy_version: int,
        engine: SamplingEngine,
        stack: AbstractContextManager[object],
        split: TimeSplit,
    ) -> RolloutBatch:
        prompts = prompts_of_batch(self.prompts, self.metadata, self.config, index)
        work = _BatchInProgress(self, prompts, split)
        with stack:
            trajectories = work.sample(engine, index, policy_version)
        with split.of("score"):
            samples = work.scoring.finish()
        with split.of("reward"):
            rewards = work.collect_rewards(trajectories)
        # A prompt that fills the context has nothing to train on; it stays in the share of truncated ones.
        totals = [
            reward.total for trajectory, reward in zip(trajectories, rewards, strict=True) if trajectory.num_turns > 0
        ]
        samples = with_advantages(samples, totals, self.objective.algorithm)
        self.show(index, trajectories, samples, rewards)
        labels = {prompt.id: self.teachers.route(self.metadata.get(prompt.id)) for prompt in work.prompts}
        reported = {key: label if label in self.objective.routes else None for key, label in labels.items()}
        parts = self._parts(work.prompts, samples)
        shares: dict[str, float] = {}
        if len(self.teachers.by_name) > 1:
            found = teacher_shares([sample for part in parts for sample in part])
            shares = {f"teacher_share/{name}": found.get(name, 0.0) for name in self.teachers.by_name}
        metrics = {
            **measure_trajectories(trajectories),
            **measure_rewards(trajectories, rewards),
            **measure_routes(trajectories, rewards, self.config.route_by, reported),
            **measure_credit(samples, self.objective.algorithm),
            **shares,
            **split.metrics(),
        }
        return RolloutBatch(index, policy_version, parts, metrics)

    def _parts(self, prompts: Sequence[Prompt], samples: Sequence[ScoredSample]) -> list[list[ScoredSample]]:
        """Split the groups over the substeps."""
        size = len(prompts) // self.config.num_substeps
        part_of = {prompt.id: number // size for number, prompt in enumerate(prompts)}
        parts: list[list[ScoredSample]] = [[] for _ in range(self.config.num_substeps)]
        for sample in samples:
            parts[part_of[sample.prompt_id]].append(sample)
        return [with_weights(part, self.config) for part in parts]


@dataclass(slots=True)
class _BatchInProgress:
    """One batch while it is sampled, scored and rewarded."""

    maker: BatchMaker
    prompts: Sequence[Prompt]
    split: TimeSplit
    scoring: Scoring = field(init=False)
    _rewards: dict[str, Future[list[TrajectoryReward]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        maker = self.maker
        self.scoring = Scoring(maker.teachers, maker.metadata, [prompt.id for prompt in self.prompts], maker.objective)

    def sample(self, engine: SamplingEngine, index: int, policy_version: int) -> list[SampledTrajectory]:
        """Return all trajectories in prompt order; each group is sent to scoring as soon as it is complete."""
        maker = self.maker
        store = None if maker.groups is None else FinishedGroups(maker.groups, index)
        stored = {} if store is None else store.load(self.prompts)
        for group in stored.values():
            self._take(group)

        def on_group(group: list[SampledTrajectory]) -> None:
            if store is not None:
                store.add(group)
            self._take(group)

        missing = [prompt for prompt in self.prompts if prompt.id not in stored]
        with self.split.of("sample"):
            sampled = maker.sampler.sample(engine, missing, index, on_group, policy_version=policy_version)
        by_prompt = {prompt.id: stored.get(prompt.id, []) for prompt in self.prompts}
        for trajectory in sampled:
            by_prompt[trajectory.prompt_id].append(trajectory)
        return [trajectory for group in by_prompt.values() for trajectory in group]

    def collect_rewards(self, trajectories: Sequence[SampledTrajectory]) -> list[TrajectoryReward]:
        """Return the rewards, aligned with `trajectories`; raise FailureBudgetExceeded if too many failed so far."""
        rewards = {prompt_id: iter(future.result()) for prompt_id, future in self._rewards.items()}
        self.maker.rewards.check_failures()
        return [next(rewards[trajectory.prompt_id]) for trajectory in trajectories]

    def _take(self, group: list[SampledTrajectory]) -> None:
        self._rewards[group[0].prompt_id] = self.maker.rewards.start(group, self.maker.metadata)
        with self.split.of("score"):
            self.scoring.add(group)
