"""The sampled KL where it rewards a token, a divergence between the distributions where it does not.

    loss_t = kl_coef * D_t                          where A_t <= 0
             the policy gradient of kl_coef * A_t   elsewhere
    A_t = -d_t = log p_teacher(t) - log p_student(t), held fixed

To make a token less likely says nothing of what should take its place: its mass goes to the others in proportion to
what the student gives them already. There D, a sum of terms of `on_policy.divergence`, shows the teacher's own choice.
This is AOPD (arXiv 2605.06387, section 5.1, equations 7 to 10, at its threshold of 0), whose D is the forward KL over
the teacher's most probable tokens: 4.1 points above the sampled KL from a strong start, 8.3 from a weak one. Rewards,
if any, are credited as in `grpo.py` and added to the policy gradient of every token.
"""

import torch

from stillhouse.training.head.scores import TokenLosses
from stillhouse.training.on_policy.algorithms.algorithm import LossInputs
from stillhouse.training.on_policy.algorithms.exact_divergence import ExactDivergence
from stillhouse.training.on_policy.algorithms.policy_gradient import policy_gradient


class Asymmetric(ExactDivergence):
    """Exploitation where the teacher agrees, imitation where it does not."""

    def losses(self, inputs: LossInputs) -> TokenLosses:
        assert inputs.divergence_N is not None
        is_imitated_N = inputs.sampled_kl_N >= 0.0
        rewarded_N = torch.where(is_imitated_N, 0.0, inputs.kl_coef_N * inputs.sampled_kl_N)
        gradient = policy_gradient(inputs, inputs.advantages_N - rewarded_N, self.config)
        divergence_N = torch.where(is_imitated_N, inputs.kl_coef_N * inputs.divergence_N, 0.0)
        imitated_N = is_imitated_N.to(inputs.sampled_kl_N.dtype)
        return TokenLosses(gradient.losses_N + divergence_N, gradient.means | {"imitated_share": imitated_N})
