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
from typing import Final

from stillhouse.config import OnPolicyConfig
from stillhouse.training.head.scores import TokenLosses
from stillhouse.training.on_policy.algorithms.algorithm import Algorithm, LossInputs
from stillhouse.training.on_policy.algorithms.policy_gradient import policy_gradient
from stillhouse.training.on_policy.scored import ScoredSample

_STD_FLOOR: Final = 1e-4
"""Added to a group's standard deviation, as TRL does."""


class GRPO(Algorithm):
    """Group-relative policy optimisation and its relatives."""

    def advantages(self, group: Sequence[ScoredSample], rewards: Sequence[float | None]) -> list[list[float]]:
        credits = reward_advantages(rewards, self.config)
        return [[credit] * sum(sample.loss_mask) for sample, credit in zip(group, credits, strict=True)]

    def losses(self, inputs: LossInputs) -> TokenLosses:
        return policy_gradient(inputs, inputs.advantages_N, self.config)


def reward_advantages(rewards: Sequence[float | None], config: OnPolicyConfig) -> list[float]:
    """Return the advantage of each trajectory of a group; 0.0 where it has no reward, or all have the same."""
    known = [reward for reward in rewards if reward is not None]
    if config.adv_estimator != "reinforce" and len(set(known)) < 2:
        return [0.0] * len(rewards)
    total = math.fsum(known)

    def credit(reward: float) -> float:
        if config.adv_estimator == "reinforce":
            return reward
        if config.adv_estimator == "rloo":
            return reward - (total - reward) / (len(known) - 1)
        mean = total / len(known)
        return (reward - mean) / (statistics.stdev(known, mean) + _STD_FLOOR)

    return [0.0 if reward is None else config.reward_coef * credit(reward) for reward in rewards]
