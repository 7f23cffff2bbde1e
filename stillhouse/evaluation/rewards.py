"""What the user's rewards say of one model's trajectories."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence

from stillhouse.evaluation.measure import mean
from stillhouse.tools.reward_set import RewardScores, RewardSet
from stillhouse.types import JsonObject, PromptMetadata, Trajectory


async def mean_rewards(
    trajectories: Sequence[Trajectory], metadata: Mapping[str, PromptMetadata], reward_set: RewardSet
) -> JsonObject:
    """Means over the trajectories that could be scored; one that could not is left out of the mean, never 0.

    Returns:
        reward, the mean of totals, and num_rewarded, how many there were; reward_by_name; num_reward_errors, rewards
        that could not be computed. A mean of nothing is None.
    """
    scored = await _scored(trajectories, metadata, reward_set)
    totals = [rewards.total for rewards in scored if rewards.total is not None]
    by_name: defaultdict[str, list[float]] = defaultdict(list)
    for rewards in scored:
        for name, value in rewards.values.items():
            if value is not None:
                by_name[name].append(value)
    return {
        "reward": mean(totals),
        "num_rewarded": len(totals),
        "reward_by_name": {name: mean(by_name[name]) for name in reward_set.names},
        "num_reward_errors": sum(len(rewards.errors) for rewards in scored),
    }


async def reward_totals(
    trajectories: Sequence[Trajectory], metadata: Mapping[str, PromptMetadata], reward_set: RewardSet
) -> dict[str, float | None]:
    """The total of each trajectory by its rollout key; None where it could not be computed."""
    scored = await _scored(trajectories, metadata, reward_set)
    return {trajectory.rollout_key: rewards.total for trajectory, rewards in zip(trajectories, scored, strict=True)}


async def _scored(
    trajectories: Sequence[Trajectory], metadata: Mapping[str, PromptMetadata], reward_set: RewardSet
) -> list[RewardScores]:
    async with reward_set:
        return await asyncio.gather(*(reward_set.score(t, metadata.get(t.prompt_id)) for t in trajectories))
