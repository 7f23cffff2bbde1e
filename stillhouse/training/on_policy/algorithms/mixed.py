"""Reward and teacher together: the advantages of `grpo.py` and of `sampled_kl.py`, added.

    A_t = reward_coef * (R - baseline) / scale - kl_coef * (d_t + later d_u, discounted)

The teacher is asked for the log-probabilities of the sampled tokens. The loss is the policy gradient of A. Only the
reward is normalised within the group; `kl_in_reward.py` normalises both.
"""

from collections.abc import Sequence

from stillhouse.training.on_policy.algorithms.grpo import reward_advantages
from stillhouse.training.on_policy.algorithms.sampled_kl import SampledKL
from stillhouse.training.on_policy.scored import ScoredSample


class Mixed(SampledKL):
    """The reward, less the KL."""

    @property
    def has_advantages(self) -> bool:
        return True

    def advantages(self, group: Sequence[ScoredSample], rewards: Sequence[float | None]) -> list[list[float]]:
        credits = reward_advantages(rewards, self.config)
        later = super().advantages(group, rewards)
        return [[credit + kl for kl in kls] for credit, kls in zip(credits, later, strict=True)]
