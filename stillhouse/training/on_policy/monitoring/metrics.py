"""Figures of a batch of rollouts, known before it is trained on.

A share or mean whose denominator is empty is left out: nothing was measured, which is not zero.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from stillhouse.training.head.scores import TokenScores
from stillhouse.training.losses import reverse_kl_k3
from stillhouse.training.on_policy.algorithms.grpo import GRPO
from stillhouse.training.on_policy.batches.credit import teacher_shares
from stillhouse.training.on_policy.rewards import TrajectoryReward
from stillhouse.training.on_policy.table import RolloutTable
from stillhouse.training.trajectories import SampledTrajectory, sampled_runs
from stillhouse.types import StopReason

_TRUNCATED: Final = (StopReason.LENGTH, StopReason.CONTEXT_OVERFLOW)
_NGRAM: Final = 4
_BY_ROUTE: Final = ("reward", "mean_completion_tokens", "truncated_share")


def measure_batch(
    table: RolloutTable,
    trajectories: Sequence[SampledTrajectory],
    rewards: Sequence[TrajectoryReward],
    algorithm: GRPO,
    teachers: Collection[str],
    labels: Mapping[str, str],
) -> dict[str, float]:
    """Return all figures of a batch, whose table lacks trajectories without a completion; `labels` as `measure_routes`.

    Returns, beside those of the functions below:
        teacher_share/NAME: each of several teachers' share of the loss.
    """
    found = teacher_shares(table, table.weight, range(len(table))) if len(teachers) > 1 else {}
    shares = {f"teacher_share/{name}": found.get(name, 0.0) for name in teachers if len(teachers) > 1}
    return {
        **measure_trajectories(trajectories),
        **measure_rewards(trajectories, rewards),
        **measure_routes(trajectories, rewards, algorithm.config.route_by, labels),
        **measure_credit(table, algorithm),
        **shares,
    }


def measure_trajectories(trajectories: Sequence[SampledTrajectory]) -> dict[str, float]:
    """Return lengths, and shares of what went wrong; there must be a trajectory.

    Returns:
        mean_completion_tokens, p95_completion_tokens, max_completion_tokens: sampled tokens of a trajectory, all its
        turns together. mean_turns. truncated_share: trajectories that ran out of tokens or of context. masked_share:
        tokens that were read and not sampled. repetition_rate: see `repetition_rate`. drifted_turns: how many turns
        have other ids when their text is tokenised again. valid_tool_call_share: calls that were understood and ran,
        among those that were answered. invalid_tool_call_share: those that were not even understood.
    """
    count = len(trajectories)
    lengths = sorted(sum(one.loss_mask) for one in trajectories)
    metrics = {
        "mean_completion_tokens": sum(lengths) / count,
        # The nearest rank, so that it is the length of a trajectory.
        "p95_completion_tokens": float(lengths[math.ceil(0.95 * count) - 1]),
        "max_completion_tokens": float(lengths[-1]),
        "mean_turns": sum(one.num_turns for one in trajectories) / count,
        "truncated_share": sum(one.stop_reason in _TRUNCATED for one in trajectories) / count,
        "masked_share": 1.0 - sum(lengths) / sum(len(one.token_ids) for one in trajectories),
        "drifted_turns": float(sum(one.num_drifted_turns for one in trajectories)),
    }
    repeated = repetition_rate(trajectories)
    if repeated is not None:
        metrics["repetition_rate"] = repeated
    num_calls = sum(one.num_tool_calls for one in trajectories)
    if num_calls:
        metrics["valid_tool_call_share"] = 1.0 - sum(one.num_tool_errors for one in trajectories) / num_calls
        metrics["invalid_tool_call_share"] = sum(one.num_invalid_tool_calls for one in trajectories) / num_calls
    return metrics


def repetition_rate(trajectories: Sequence[SampledTrajectory]) -> float | None:
    """Return the share of 4-grams that were there before in the same completion; None without a 4-gram.

        1 - sum |distinct 4-grams| / sum |4-grams|,   both sums over completions

    seq-rep-4 of Welleck et al. 2019, section 6 (arXiv 1908.04319), of which text of people has about 0.5 % and a model
    caught in a loop nearly 100 %. Turns count by themselves: that calls of tools are alike is no repetition. Long
    completions weigh more than in the paper's mean over completions, since loops are long.
    """
    num_distinct = num_all = 0
    for completion in (run for one in trajectories for run in sampled_runs(one)):
        ngrams = list(zip(*(completion[start:] for start in range(_NGRAM)), strict=False))
        num_distinct += len(set(ngrams))
        num_all += len(ngrams)
    return 1.0 - num_distinct / num_all if num_all else None


def measure_rewards(trajectories: Sequence[SampledTrajectory], rewards: Sequence[TrajectoryReward]) -> dict[str, float]:
    """Return what rewards say of the trajectories they are aligned with.

    Returns:
        reward: mean total, and reward/PART the mean of each part, of trajectories that have one. reward_error_share:
        trajectories of which a reward could not be computed. zero_variance_group_share: prompts all of whose
        trajectories have the same total, from which a reward that is compared within a group teaches nothing, among
        the prompts with at least two totals.
    """
    parts: defaultdict[str, list[float]] = defaultdict(list)
    groups: defaultdict[str, list[float]] = defaultdict(list)
    for trajectory, reward in zip(trajectories, rewards, strict=True):
        for name, value in reward.parts.items():
            parts[name].append(value)
        if reward.total is not None:
            groups[trajectory.prompt_id].append(reward.total)
    metrics = {f"reward/{name}": statistics.fmean(values) for name, values in sorted(parts.items())}
    metrics["reward_error_share"] = sum(bool(reward.errors) for reward in rewards) / len(rewards)
    totals = [total for group in groups.values() for total in group]
    if totals:
        metrics["reward"] = statistics.fmean(totals)
    compared = [group for group in groups.values() if len(group) > 1]
    if compared:
        metrics["zero_variance_group_share"] = sum(len(set(group)) == 1 for group in compared) / len(compared)
    return metrics


def measure_routes(
    trajectories: Sequence[SampledTrajectory],
    rewards: Sequence[TrajectoryReward],
    route_by: str,
    labels: Mapping[str, str],
) -> dict[str, float]:
    """Return reward, length and truncation by the value of `on_policy.route_by`, as `reward_by_tag/algebra`.

    `rewards` are aligned with the trajectories. `labels` has the value by prompt id, without prompts that are not
    reported by it.
    """
    by_label: defaultdict[str, list[tuple[SampledTrajectory, TrajectoryReward]]] = defaultdict(list)
    for trajectory, reward in zip(trajectories, rewards, strict=True):
        label = labels.get(trajectory.prompt_id)
        if label is not None:
            by_label[label].append((trajectory, reward))
    metrics: dict[str, float] = {}
    for label, scored in sorted(by_label.items()):
        mine = [trajectory for trajectory, _ in scored]
        figures = measure_trajectories(mine) | measure_rewards(mine, [reward for _, reward in scored])
        metrics |= {f"{name}_by_{route_by}/{label}": figures[name] for name in _BY_ROUTE if name in figures}
    return metrics


def measure_credit(table: RolloutTable, algorithm: GRPO) -> dict[str, float]:
    """Return sampled_advantage and sampled_advantage_std; see `GRPO.advantages_when_sampled`."""
    advantages = algorithm.advantages_when_sampled(table)[table.loss_mask]
    if not len(advantages):
        return {}
    return {"sampled_advantage": float(advantages.mean()), "sampled_advantage_std": float(advantages.std())}


def staleness(table: RolloutTable, part: int, policy_version: int) -> dict[str, float]:
    """Return staleness: updates between the weights that sampled and `policy_version`, mean over a part's tokens."""
    versions = table.policy_version[table.loss_mask & table.spread(table.part == part)]
    return {"staleness": float((policy_version - versions).mean())} if len(versions) else {}


def most_stale(table: RolloutTable, policy_version: int) -> dict[str, float]:
    """Return staleness_max: the most such updates of any token, where a batch begins to be trained on."""
    versions = table.policy_version[table.loss_mask]
    return {"staleness_max": float(policy_version - versions.min())} if len(versions) else {}


def kl_by_name(
    scores: TokenScores,
    kl_N: Tensor,
    teacher_N: Tensor,
    is_scored_N: Tensor,
    groups: Sequence[tuple[str, Tensor | None, Sequence[str]]],
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return numerator and denominator of means over the tokens that a teacher scored, by metric.

    Returns:
        teacher_kl, and teacher_kl_k3 by `reverse_kl_k3`. divergence, where it is compared. PREFIX/NAME: the KL of the
        tokens of a name, of `groups` with their prefix, the place of each token's name if there are any, and the names.
    """
    k3_N = torch.where(is_scored_N, reverse_kl_k3(scores.logprobs_N.detach(), teacher_N), 0.0)
    summed = {"teacher_kl": kl_N, "teacher_kl_k3": k3_N}
    if scores.divergence_N is not None:
        summed["divergence"] = scores.divergence_N.detach()
    weights_N = is_scored_N.to(kl_N.dtype)
    ratios = {name: (sums_N * weights_N, weights_N) for name, sums_N in summed.items()}
    for prefix, places_N, names in groups:
        for place, name in enumerate(names if places_N is not None else ()):
            of_name_N = weights_N * (places_N == place)
            ratios[f"{prefix}/{name}"] = (kl_N * of_name_N, of_name_N)
    return ratios
