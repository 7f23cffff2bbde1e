"""An exact divergence between student and teacher at every sampled token.

    loss_t = kl_coef * sum over terms of weight * D_t(student, teacher)  +  policy gradient of reward_coef * A_reward

D is a KL in either direction, generalised Jensen-Shannon (GKD, Agarwal et al., arXiv 2306.13649) or a skewed KL
(DistiLLM, Ko et al., arXiv 2402.03898), of the whole vocabulary or its most probable tokens (`training/head`). It is
differentiated directly, without a policy gradient. The teacher is asked for its whole distribution.
"""

from stillhouse.config import Divergence
from stillhouse.training.head.scores import TokenLosses
from stillhouse.training.on_policy.algorithms.algorithm import LossInputs
from stillhouse.training.on_policy.algorithms.grpo import GRPO
from stillhouse.training.on_policy.algorithms.policy_gradient import policy_gradient


class ExactDivergence(GRPO):
    """Rewards, if any, as `GRPO` credits them, beside the divergence."""

    @property
    def divergence(self) -> tuple[Divergence, ...]:
        return self.config.divergence

    def losses(self, inputs: LossInputs) -> TokenLosses:
        assert inputs.divergence_N is not None
        divergence_N = inputs.kl_coef_N * inputs.divergence_N
        if not self.has_advantages:
            return TokenLosses(divergence_N)
        rewarded = policy_gradient(inputs, inputs.advantages_N, self.config)
        return TokenLosses(rewarded.losses_N + divergence_N, rewarded.means)
