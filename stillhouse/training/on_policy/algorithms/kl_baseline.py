"""The sampled KL with the exact KL as its baseline.

    A_t = reward_coef * A_reward - kl_coef * (d_t - KL_t)
    KL_t = sum over the vocabulary of p_student * (log p_student - log p_teacher)

KL_t does not depend on which token was sampled, so that it leaves the expected gradient as it is and lowers its
variance (vOPD, arXiv 2605.07865). The teacher is asked for its whole distribution. The loss is the policy gradient of
A, with d_t and KL_t under the weights being trained.
"""

from typing import ClassVar

from stillhouse.training.head.scores import ScoreName, TokenLosses
from stillhouse.training.on_policy.algorithms.algorithm import Asks, LossInputs
from stillhouse.training.on_policy.algorithms.grpo import GRPO
from stillhouse.training.on_policy.algorithms.policy_gradient import policy_gradient


class KLBaseline(GRPO):
    """Rewards, if any, as `GRPO` credits them; the KL under the weights being trained."""

    asks: ClassVar[Asks] = "distribution"
    scores: frozenset[ScoreName] = frozenset({"reverse_kl"})

    def losses(self, inputs: LossInputs) -> TokenLosses:
        assert inputs.exact_kl_N is not None
        advantages_N = inputs.advantages_N - inputs.kl_coef_N * (inputs.sampled_kl_N - inputs.exact_kl_N)
        return policy_gradient(inputs, advantages_N, self.config)
