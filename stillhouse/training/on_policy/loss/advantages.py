"""Credit of sampled tokens.

    A_t = reward_coef * A_reward - kl_coef * (d_t + sum over later tokens u of kl_discount_factor^(u - t) d_u)

with d = log p_student - log p_teacher of a sampled token. All but d_t is fixed before training and made here, in
float64; d_t is taken under the weights being trained (`objective.py`). Distances count sampled tokens alone: a tool's
output lies between two of them as if it were not there.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import compress
from typing import Final, Literal, NamedTuple

from stillhouse.config import OnPolicyConfig
from stillhouse.training.on_policy.masks import at_sampled_tokens
from stillhouse.training.on_policy.scored import ScoredSample

AdvEstimator = Literal["grpo", "mean", "rloo", "reinforce"]

_STD_FLOOR: Final = 1e-4
"""Added to a group's standard deviation, as TRL does."""


class Comparison(NamedTuple):
    """What a reward is compared with: its advantage is (reward - baseline) / scale."""

    baseline: float
    scale: float
    """Infinite where there is nothing to compare, so that every advantage is 0."""


def compared(rewards: Sequence[float], estimator: AdvEstimator) -> list[Comparison]:
    """The comparison of each trajectory with its group, of which `rewards` are all.

    `grpo`: the group's mean and sample standard deviation (DeepSeekMath, arXiv 2402.03300, section 4.1.2). `mean`: the
    mean alone (Dr. GRPO, arXiv 2503.20783). `rloo`: the mean of the others (Ahmadian et al., arXiv 2402.14740, section
    3.2), which leaves the gradient unbiased. `reinforce`: the reward as it is. But for `reinforce`, equal rewards have
    no advantage.
    """
    if estimator == "reinforce":
        return [Comparison(0.0, 1.0)] * len(rewards)
    if len(set(rewards)) < 2:
        return [Comparison(0.0, math.inf)] * len(rewards)
    total = math.fsum(rewards)
    if estimator == "rloo":
        return [Comparison((total - reward) / (len(rewards) - 1), 1.0) for reward in rewards]
    mean = total / len(rewards)
    return [Comparison(mean, statistics.stdev(rewards, mean) + _STD_FLOOR if estimator == "grpo" else 1.0)] * len(
        rewards
    )


def later_reverse_kl(reverse_kls: Sequence[float], discount: float) -> list[float]:
    """The sum over later tokens u > t of discount^(u - t) * reverse_kls[u], for each of the sampled tokens t."""
    tail, tails = 0.0, []
    for value in reversed(reverse_kls):
        tails.append(tail)
        tail = discount * (value + tail)
    return tails[::-1]


def has_fixed_advantages(config: OnPolicyConfig) -> bool:
    """Whether any part of the advantage is known before training."""
    return config.reward_coef > 0.0 or config.kl_discount_factor > 0.0 or config.kl_in_reward


def credited(
    samples: Sequence[ScoredSample], rewards: Sequence[float | None], config: OnPolicyConfig
) -> list[ScoredSample]:
    """The samples with their `advantages`, where any part of them is known before training.

    Where reward_coef is 0, rewards are not even looked at.

    Args:
        samples: of whole groups; those of one prompt are a group.
        rewards: of each; one that is None has no advantage and is nothing to compare others with.
        config: coefficients, estimator and discount.
    """
    if not has_fixed_advantages(config):
        return list(samples)
    groups: dict[str, list[int]] = {}
    for index, sample in enumerate(samples):
        groups.setdefault(sample.prompt_id, []).append(index)
    made = list(samples)
    for indices in groups.values():
        group = [samples[index] for index in indices]
        known = [rewards[index] if config.reward_coef > 0.0 else None for index in indices]
        advantages = _with_kl_in_reward(group, known, config) if config.kl_in_reward else _apart(group, known, config)
        for index, sample, values in zip(indices, group, advantages, strict=True):
            made[index] = replace(sample, advantages=at_sampled_tokens(values, sample.loss_mask))
    return made


def sampled_advantages(sample: ScoredSample, config: OnPolicyConfig) -> list[float]:
    """The advantages under the weights that sampled, aligned with `token_ids`: to look at, never to train on.

    Training takes the KL under the weights being trained unless on_policy.advantage_against says otherwise, which is
    the same until the first update. Where distributions are compared exactly there is the fixed part alone.
    """
    advantages = sample.advantages or [0.0] * len(sample.token_ids)
    kls = None if config.kl_in_reward else sample.sampled_kl
    if kls is not None:
        advantages = [fixed - sample.kl_coef * kl for fixed, kl in zip(advantages, kls, strict=True)]
    if config.adv_clip is None:
        return advantages
    return [min(max(advantage, -config.adv_clip), config.adv_clip) for advantage in advantages]


def _apart(group: Sequence[ScoredSample], rewards: Sequence[float | None], config: OnPolicyConfig) -> list[list[float]]:
    """Advantages of the sampled tokens: the normalised reward, less the KL of later tokens."""
    comparisons = _compared_where_known(rewards, config.adv_estimator)
    made = []
    for sample, reward, (baseline, scale) in zip(group, rewards, comparisons, strict=True):
        credit = 0.0 if reward is None else config.reward_coef * ((reward - baseline) / scale)
        tails = later_reverse_kl(_reverse_kls(sample), config.kl_discount_factor)
        made.append([credit - sample.kl_coef * tail for tail in tails])
    return made


def _with_kl_in_reward(
    group: Sequence[ScoredSample], rewards: Sequence[float | None], config: OnPolicyConfig
) -> list[list[float]]:
    """Advantages of the sampled tokens whose return is the reward less the discounted KL from the token on.

    Trajectories are compared by the mean of their tokens' returns. With kl_discount_factor = 1 a return holds the whole
    KL that is still to come, as verl's `use_kl_in_reward` has it. Where nobody of a group has a reward, its KL is what
    is compared.
    """
    kls, means = [], []
    known: list[float | None] = list(rewards) if any(reward is not None for reward in rewards) else [0.0] * len(group)
    for sample, reward in zip(group, known, strict=True):
        now = _reverse_kls(sample)
        later = later_reverse_kl(now, config.kl_discount_factor)
        kls.append([sample.kl_coef * (first + tail) for first, tail in zip(now, later, strict=True)])
        mean_kl = math.fsum(kls[-1]) / max(1, len(kls[-1]))
        means.append(None if reward is None else config.reward_coef * reward - mean_kl)
    made = []
    for reward, kl, (baseline, scale) in zip(
        known, kls, _compared_where_known(means, config.adv_estimator), strict=True
    ):
        made.append(
            [0.0 if reward is None else (config.reward_coef * reward - value - baseline) / scale for value in kl]
        )
    return made


def _compared_where_known(rewards: Sequence[float | None], estimator: AdvEstimator) -> list[Comparison]:
    found = iter(compared([reward for reward in rewards if reward is not None], estimator))
    return [Comparison(0.0, math.inf) if reward is None else next(found) for reward in rewards]


def _reverse_kls(sample: ScoredSample) -> list[float]:
    """The reverse KL of each sampled token as it was sampled; 0.0 where no teacher scored it."""
    kls = sample.sampled_kl
    return [0.0] * sum(sample.loss_mask) if kls is None else list(compress(kls, sample.loss_mask))
