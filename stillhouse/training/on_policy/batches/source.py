"""The groups of a batch: sampled for it, or in a stream ahead of it; each is rewarded and scored as soon as it ends."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from stillhouse.config import OnPolicyConfig
from stillhouse.training.on_policy.batches.groups import FinishedGroups
from stillhouse.training.on_policy.batches.scoring import Scoring
from stillhouse.training.on_policy.batches.stream import RolloutStream
from stillhouse.training.on_policy.prompts import prompts_of_batch
from stillhouse.training.on_policy.rewards import RewardScorer, TrajectoryReward
from stillhouse.training.on_policy.sampling.engine import SamplingEngine
from stillhouse.training.on_policy.sampling.sampler import Sampler
from stillhouse.training.on_policy.teachers.router import TeacherRouter
from stillhouse.training.ranks import Ranks, merged
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import Prompt, PromptMetadata


class Prepared(NamedTuple):
    """A finished group, with rewards and served teachers asked about it."""

    trajectories: list[SampledTrajectory]
    rewards: Future[list[TrajectoryReward]]
    scoring: Scoring


@dataclass(frozen=True, slots=True)
class Rollouts:
    """The rollouts of a batch."""

    prompts: list[Prompt]
    trajectories: list[SampledTrajectory]
    """Of all processes, in the order of their prompts."""
    scoring: Scoring
    """To which they are added."""
    mine: Mapping[str, Prepared]
    """What this process sampled, by prompt id."""
    untaken: list[int] = field(default_factory=list)
    """See `RolloutTable.untaken`."""
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RolloutSource:
    """Gives the rollouts of each batch."""

    prompts: Sequence[Prompt]
    """Sampled from, in an order drawn for each pass over them."""
    metadata: Mapping[str, PromptMetadata]
    """By prompt id; may lack any."""
    sampler: Sampler
    teachers: TeacherRouter
    rewards: RewardScorer
    config: OnPolicyConfig
    ranks: Ranks
    share: slice
    """The prompts of a batch that this process samples."""
    is_scored_ahead: bool
    """See `Objective.is_scored_ahead`."""
    groups: Path | None = None
    """Folder for the finished groups of an unfinished batch; None stores none."""
    stream: RolloutStream[Prepared] | None = None
    """In the first process, where `config.max_staleness` has groups sampled while others are trained on."""

    def take(self, engine: SamplingEngine, index: int, policy_version: int) -> Rollouts:
        """Return the rollouts of batch `index`; collective."""
        untaken: list[int] = []
        metrics: dict[str, float] = {}
        if self.config.max_staleness:
            taken, untaken, metrics = self.stream.take(index) if self.stream else ([], [], {})
            prompts = self.ranks.broadcast([group.prompt for group in taken])
            mine = {group.prompt.id: group.ready for group in taken if group.ready is not None}
        else:
            prompts = self.prompts_of(index)
            mine = self._sampled(engine, prompts[self.share], index, policy_version)
        self.ranks.meet()
        by_prompt = merged(self.ranks.gather({key: group.trajectories for key, group in mine.items()}))
        scoring = self._new_scoring()
        for prompt in prompts:
            if prompt.id in mine:
                scoring.join(mine[prompt.id].scoring)
            else:
                scoring.add(by_prompt[prompt.id])
        trajectories = [one for prompt in prompts for one in by_prompt[prompt.id]]
        return Rollouts(prompts, trajectories, scoring, mine, untaken, metrics)

    def rewards_of(self, rollouts: Rollouts) -> list[TrajectoryReward]:
        """Return the rewards of all trajectories, in order; collective. Raises as `RewardScorer.check_failures`."""
        mine = {key: group.rewards.result() for key, group in rollouts.mine.items()}
        found = merged(self.ranks.gather(mine))
        self.rewards.check_failures()
        return [reward for prompt in rollouts.prompts for reward in found[prompt.id]]

    def prompts_of(self, index: int) -> list[Prompt]:
        """Return the prompts of batch `index`, or those that are at its place in the stream."""
        return prompts_of_batch(self.prompts, self.metadata, self.config, index)

    def prepare(self, group: list[SampledTrajectory]) -> Prepared:
        """Have a finished group rewarded and scored while others are still sampled."""
        scoring = self._new_scoring()
        scoring.add(group)
        return Prepared(group, self.rewards.start(group, self.metadata), scoring)

    def _new_scoring(self) -> Scoring:
        return Scoring(self.teachers, self.metadata, self.ranks, is_scored_ahead=self.is_scored_ahead)

    def _sampled(
        self, engine: SamplingEngine, prompts: Sequence[Prompt], index: int, policy_version: int
    ) -> dict[str, Prepared]:
        store = None if self.groups is None else FinishedGroups(self.groups, index)
        stored = {} if store is None else store.load(prompts)
        prepared = {prompt_id: self.prepare(group) for prompt_id, group in stored.items()}

        def on_group(group: list[SampledTrajectory]) -> None:
            if store is not None:
                store.add(group)
            prepared[group[0].prompt_id] = self.prepare(group)

        missing = [prompt for prompt in prompts if prompt.id not in prepared]
        self.sampler.sample(engine, missing, index, on_group, policy_version=policy_version)
        return prepared
