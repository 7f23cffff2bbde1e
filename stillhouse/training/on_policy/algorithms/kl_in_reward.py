"""The KL as part of the reward, normalised with it.

    G_t = reward_coef * R - kl_coef * (d_t + sum over later tokens u of kl_discount_factor^(u - t) * d_u)
    A_t = (G_t - baseline) / scale

Baseline and scale are those of `grpo.py`, of the trajectories' mean G. With kl_discount_factor = 1 a return G_t holds
the whole KL that is still to come, as verl's `use_kl_in_reward` has it. The teacher is asked for the log-probabilities
of the sampled tokens. All of d is as it was sampled, and the loss is the policy gradient of A.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

from stillhouse.training.on_policy.algorithms.algorithm import Asks
from stillhouse.training.on_policy.algorithms.grpo import GRPO, group_baselines
from stillhouse.training.on_policy.algorithms.sampled_kl import later_kl, sampled_kl
from stillhouse.training.on_policy.scored import ScoredSample


class KLInReward(GRPO):
    """Returns less the KL, compared within the group; where no reward of it is known, by the KL alone."""

    asks: ClassVar[Asks] = "logprobs"

    @property
    def has_advantages(self) -> bool:
        return True

    def advantages(self, group: Sequence[ScoredSample], rewards: Sequence[float | None]) -> list[list[float]]:
        if all(reward is None for reward in rewards):
            rewards = [0.0] * len(group)
        coef = self.config.reward_coef
        kls = [self._kl_to_come(sample) for sample in group]
        means = [
            None if reward is None else coef * reward - math.fsum(kl) / max(1, len(kl))
            for reward, kl in zip(rewards, kls, strict=True)
        ]
        baselines = group_baselines(means, self.config)
        return [
            [0.0 if reward is None else (coef * reward - value - baseline) / scale for value in kl]
            for reward, kl, (baseline, scale) in zip(rewards, kls, baselines, strict=True)
        ]

    def _kl_to_come(self, sample: ScoredSample) -> list[float]:
        """The KL of each sampled token and of those after it, discounted, times its coefficient."""
        kls = sampled_kl(sample)
        later = later_kl(kls, self.config.kl_discount_factor)
        return [sample.kl_coef * (kl + tail) for kl, tail in zip(kls, later, strict=True)]
