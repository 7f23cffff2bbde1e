"""Rewards alone, compared within the group of a prompt's trajectories.

    A_t = reward_coef * (R - baseline) / scale        of every sampled token t of a trajectory with reward R

    adv_estimator   baseline              scale
    grpo            mean of the group     standard deviation    DeepSeekMath, arXiv 2402.03300, section 4.1.2
    rloo            mean of the others    1                     Ahmadian et al., arXiv 2402.14740, section 3.2: unbiased
    reinforce       0                     1                     Williams 1992

The teacher is asked nothing. The loss is the policy gradient of A.
"""

import math
import statistics
from collections.abc import Sequence
from typing import ClassVar, Final, NamedTuple

from stillhouse.config import OnPolicyConfig
from stillhouse.training.head.scores import TokenLosses
from stillhouse.training.on_policy.algorithms.algorithm import Algorithm, Asks, LossInputs
from stillhouse.training.on_policy.algorithms.policy_gradient import policy_gradient
from stillhouse.training.on_policy.scored import ScoredSample

_STD_FLOOR: Final = 1e-4
"""Added to a group's standard deviation, as TRL does."""


class Baseline(NamedTuple):
    """An advantage is (reward - baseline) / scale; the scale is infinite where there is nothing to compare with."""

    baseline: float
    scale: float


class GRPO(Algorithm):
    """Group-relative policy optimisation and its relatives."""

    asks: ClassVar[Asks] = "nothing"

    def advantages(self, group: Sequence[ScoredSample], rewards: Sequence[float | None]) -> list[list[float]]:
        credits = reward_advantages(rewards, self.config)
        return [[credit] * sum(sample.loss_mask) for sample, credit in zip(group, credits, strict=True)]

    def losses(self, inputs: LossInputs) -> TokenLosses:
        return policy_gradient(inputs, inputs.advantages_N, self.config)


def reward_advantages(rewards: Sequence[float | None], config: OnPolicyConfig) -> list[float]:
    """Return the advantage of each trajectory of a group; 0.0 where it has no reward."""
    baselines = group_baselines(rewards, config)
    return [
        0.0 if reward is None else config.reward_coef * ((reward - baseline) / scale)
        for reward, (baseline, scale) in zip(rewards, baselines, strict=True)
    ]


def group_baselines(rewards: Sequence[float | None], config: OnPolicyConfig) -> list[Baseline]:
    """Return the baseline of each reward of a group; equal rewards have no advantage, and None is no reward."""
    known = [reward for reward in rewards if reward is not None]
    if config.adv_estimator == "reinforce":
        return [Baseline(0.0, 1.0)] * len(rewards)
    if len(set(known)) < 2:
        return [Baseline(0.0, math.inf)] * len(rewards)
    total = math.fsum(known)
    if config.adv_estimator == "rloo":
        return [Baseline((total - (reward or 0.0)) / (len(known) - 1), 1.0) for reward in rewards]
    mean = total / len(known)
    return [Baseline(mean, statistics.stdev(known, mean) + _STD_FLOOR)] * len(rewards)
