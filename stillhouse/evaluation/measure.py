"""Metrics of one model's trajectories on a set of prompts.

A share or mean whose denominator is empty is None: nothing was measured, which is not zero.
"""

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from stillhouse.dataset.totals import completion_tokens, totals_of
from stillhouse.tools.reward_set import RewardScores, RewardSet
from stillhouse.types import JsonObject, PromptMetadata, StopReason, Trajectory
from stillhouse.verification import INFRASTRUCTURE_STOPS, examine_trajectory
from stillhouse.verification.intervals import Group, effective_sample_size, wilson_interval

TRUNCATED: Final = frozenset({StopReason.LENGTH, StopReason.CONTEXT_OVERFLOW, StopReason.BUDGET})
"""Stops of a trajectory that a limit cut off."""


def measure(trajectories: Iterable[Trajectory], metadata: Mapping[str, PromptMetadata]) -> JsonObject:
    """Return accuracy with its interval, lengths, and shares of what went wrong.

    Trajectories that the infrastructure failed (an error, a timeout, a provider's filter) count in `failed_share`
    alone. Of the others, those with an expected answer count in the accuracy, as wrong if they came to no answer.

    Returns:
        num_prompts, num_trajectories; accuracy, accuracy_low, accuracy_high, num_verified; accuracy_by_tag and
        num_verified_by_tag; pass_at_k (empty without several trajectories of a prompt); mean_completion_tokens,
        mean_turns, truncated_share and valid_tool_call_share over trajectories that did not fail; failed_share; and
        completion_tokens over all, None as soon as one is unknown. Valid tool calls are those that parsed, were
        validated and ran, among the calls that were answered.
    """
    all_trajectories = list(trajectories)
    valid = [trajectory for trajectory in all_trajectories if trajectory.stop_reason not in INFRASTRUCTURE_STOPS]
    by_prompt, by_tag = _verdicts(valid, metadata)
    valid_totals = [totals_of(trajectory) for trajectory in valid]
    tokens, all_tokens = _tokens(valid), _tokens(all_trajectories)
    num_results = sum(totals.num_tool_results for totals in valid_totals)
    num_errors = sum(totals.num_tool_errors for totals in valid_totals)
    return {
        "num_prompts": len({trajectory.prompt_id for trajectory in all_trajectories}),
        "num_trajectories": len(all_trajectories),
        **_accuracy(by_prompt),
        "accuracy_by_tag": {tag: mean(verdicts) for tag, verdicts in sorted(by_tag.items())},
        "num_verified_by_tag": {tag: len(verdicts) for tag, verdicts in sorted(by_tag.items())},
        "pass_at_k": mean_pass_at_k(by_prompt),
        "mean_completion_tokens": None if tokens is None else mean(tokens),
        "mean_turns": mean([len(trajectory.turns) for trajectory in valid]),
        "truncated_share": mean([trajectory.stop_reason in TRUNCATED for trajectory in valid]),
        "valid_tool_call_share": 1.0 - num_errors / num_results if num_results else None,
        "failed_share": mean([trajectory.stop_reason in INFRASTRUCTURE_STOPS for trajectory in all_trajectories]),
        "completion_tokens": None if all_tokens is None else sum(all_tokens),
    }


def pass_at_k(num_samples: int, num_right: int, k: int) -> float:
    """Return an unbiased estimate from `num_samples` trajectories of one prompt, `num_right` of them right.

        1 - C(n - c, k) / C(n, k)

    Chen et al. 2021, "Evaluating large language models trained on code", equation 1 (arXiv 2107.03374).
    """
    return 1.0 - math.comb(num_samples - num_right, k) / math.comb(num_samples, k)


def mean_pass_at_k(groups: Sequence[Sequence[bool]]) -> dict[str, float]:
    """Return mean pass@k over prompts, k = 1, 2, 4, ... up to the largest group; empty if all groups have one.

    A prompt with fewer than k trajectories, some having failed, is left out of pass@k.
    """
    largest = max(map(len, groups), default=0)
    if largest < 2:
        return {}
    return {
        str(k): math.fsum(estimates) / len(estimates)
        for k in (1 << power for power in range(largest.bit_length()))
        if (estimates := [pass_at_k(len(group), sum(group), k) for group in groups if len(group) >= k])
    }


def _verdicts(
    trajectories: Sequence[Trajectory], metadata: Mapping[str, PromptMetadata]
) -> tuple[list[list[bool]], dict[str, list[bool]]]:
    """Return verdicts of verified trajectories grouped by prompt, and by tag where there is one."""
    by_prompt: defaultdict[str, list[bool]] = defaultdict(list)
    by_tag: defaultdict[str, list[bool]] = defaultdict(list)
    for trajectory in trajectories:
        prompt_metadata = metadata.get(trajectory.prompt_id)
        verdict = examine_trajectory(trajectory, prompt_metadata).verified
        if prompt_metadata is None or verdict is None:
            continue
        by_prompt[trajectory.prompt_id].append(verdict)
        if prompt_metadata.tag is not None:
            by_tag[prompt_metadata.tag].append(verdict)
    return list(by_prompt.values()), by_tag


def _accuracy(by_prompt: Sequence[Sequence[bool]]) -> JsonObject:
    num_verified = sum(map(len, by_prompt))
    if num_verified == 0:
        return {"accuracy": None, "accuracy_low": None, "accuracy_high": None, "num_verified": 0}
    accuracy = sum(map(sum, by_prompt)) / num_verified
    groups = Counter(Group(len(verdicts), sum(verdicts)) for verdicts in by_prompt)
    low, high = wilson_interval(accuracy, effective_sample_size(groups))
    return {"accuracy": accuracy, "accuracy_low": low, "accuracy_high": high, "num_verified": num_verified}


def _tokens(trajectories: Sequence[Trajectory]) -> list[int] | None:
    """Return tokens sampled, 0 if the prompt was too long or the first request failed; None if a count is unknown."""
    counts = [completion_tokens(trajectory) if trajectory.turns else 0 for trajectory in trajectories]
    known = [count for count in counts if count is not None]
    return known if len(known) == len(counts) else None


def mean(values: Sequence[float]) -> float | None:
    """Return the mean; None of nothing."""
    return math.fsum(values) / len(values) if values else None


async def mean_rewards(
    trajectories: Sequence[Trajectory], metadata: Mapping[str, PromptMetadata], reward_set: RewardSet
) -> JsonObject:
    """Return means over trajectories whose rewards could be computed; others are left out of the mean, never 0.

    Returns:
        reward, the mean of totals, and num_rewarded, how many there were; reward_by_name; num_reward_errors, rewards
        that could not be computed. A mean of nothing is None.
    """
    computed = await _rewards(trajectories, metadata, reward_set)
    totals = [rewards.total for rewards in computed if rewards.total is not None]
    by_name: defaultdict[str, list[float]] = defaultdict(list)
    for rewards in computed:
        for name, value in rewards.values.items():
            if value is not None:
                by_name[name].append(value)
    return {
        "reward": mean(totals),
        "num_rewarded": len(totals),
        "reward_by_name": {name: mean(by_name[name]) for name in reward_set.names},
        "num_reward_errors": sum(len(rewards.errors) for rewards in computed),
    }


async def reward_totals(
    trajectories: Sequence[Trajectory], metadata: Mapping[str, PromptMetadata], reward_set: RewardSet
) -> dict[str, float | None]:
    """Return the total of each trajectory by its rollout key; None where it could not be computed."""
    computed = await _rewards(trajectories, metadata, reward_set)
    return {one.rollout_key: rewards.total for one, rewards in zip(trajectories, computed, strict=True)}


async def _rewards(
    trajectories: Sequence[Trajectory], metadata: Mapping[str, PromptMetadata], reward_set: RewardSet
) -> list[RewardScores]:
    async with reward_set:
        return await asyncio.gather(*(reward_set.score(t, metadata.get(t.prompt_id)) for t in trajectories))
