"""Rewards, compared within the group of a prompt's trajectories; the base of the algorithms that add a teacher to them.

    A_t = reward_coef * (R - baseline) / scale        of every sampled token t of a trajectory with reward R

    adv_estimator   baseline              scale
    grpo            mean of the group     standard deviation    DeepSeekMath, arXiv 2402.03300, section 4.1.2
    rloo            mean of the others    1                     Ahmadian et al., arXiv 2402.14740, section 3.2: unbiased
    reinforce       0                     1                     Williams 1992

The teacher is asked nothing. The loss is the policy gradient of A.

Credit comes in two parts. `advantages` is computed once, when the batch of rollouts has been sampled, scored and
rewarded; it is made in float64 and stored with the batch. `losses` is computed under the weights being trained, and may
add to it what depends on them.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Final

import numpy as np

from stillhouse.config import Divergence, OnPolicyConfig
from stillhouse.training.head.scores import TokenLosses
from stillhouse.training.on_policy.algorithms.algorithm import LossInputs
from stillhouse.training.on_policy.algorithms.policy_gradient import policy_gradient
from stillhouse.training.on_policy.table import RolloutTable

_STD_FLOOR: Final = 1e-4
"""Added to a group's standard deviation, as TRL does."""


class GRPO:
    """Group-relative policy optimisation and its relatives."""

    def __init__(self, config: OnPolicyConfig) -> None:
        self.config = config

    @property
    def divergence(self) -> tuple[Divergence, ...]:
        """Return the exact divergence's terms for the output layer; empty where a teacher scores sampled tokens only.

        Its distribution is whole from a model in this process, and has the most probable tokens from a server.
        """
        return ()

    @property
    def has_advantages(self) -> bool:
        """Return whether `advantages` makes any."""
        return self.config.reward_coef > 0.0

    def advantages(self, rewards: Sequence[float | None]) -> list[float]:
        """Return the advantage of each trajectory of a prompt; 0.0 where it has no reward, or all have the same."""
        config = self.config
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

    def losses(self, inputs: LossInputs) -> TokenLosses:
        """Return the loss of each token, with means to report."""
        return policy_gradient(inputs, inputs.advantages_N, self.config)

    def advantages_when_sampled(self, table: RolloutTable) -> np.ndarray:
        """Return the advantages [T] under the weights that sampled, within `adv_clip`: never to train on."""
        bound = self.config.adv_clip
        advantages = self._advantages_when_sampled(table)
        return advantages if bound is None else advantages.clip(-bound, bound)

    def _advantages_when_sampled(self, table: RolloutTable) -> np.ndarray:
        return np.zeros(len(table.token_ids)) if table.advantages is None else table.advantages
