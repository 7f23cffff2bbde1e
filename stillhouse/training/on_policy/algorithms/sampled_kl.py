"""On-policy distillation by the reverse KL of the sampled tokens, with rewards or without.

    A_t = reward_coef * A_reward - kl_coef * d_t
    d_t = log p_student(t) - log p_teacher(t)

The mean of d over sampled tokens estimates KL(student || teacher); each token answers for itself alone (Lu and Thinking
Machines Lab 2025, https://thinkingmachines.ai/blog/on-policy-distillation). A_reward is as in `grpo.py`: the reward
is normalised within the group, the KL is not.

The teacher is asked for the log-probabilities of the sampled tokens. The loss is the policy gradient of A, with d_t
under the weights being trained, so that its gradient is right where the sampler lags.
"""

import numpy as np

from stillhouse.training.head.scores import TokenLosses
from stillhouse.training.on_policy.algorithms.algorithm import LossInputs
from stillhouse.training.on_policy.algorithms.grpo import GRPO
from stillhouse.training.on_policy.algorithms.policy_gradient import policy_gradient
from stillhouse.training.on_policy.table import RolloutTable


class SampledKL(GRPO):
    """Rewards, if any, as `GRPO` credits them, less the KL."""

    def losses(self, inputs: LossInputs) -> TokenLosses:
        advantages_N = inputs.advantages_N - inputs.kl_coef_N * inputs.sampled_kl_N
        return policy_gradient(inputs, advantages_N, self.config)

    def _advantages_when_sampled(self, table: RolloutTable) -> np.ndarray:
        kl = np.nan_to_num(table.sampled_kl, nan=0.0)
        return super()._advantages_when_sampled(table) - table.spread(table.kl_coef) * kl
