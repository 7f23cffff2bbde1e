"""On-policy distillation by the reverse KL of the sampled tokens.

    A_t = -kl_coef * (d_t + sum over later tokens u of kl_discount_factor^(u - t) * d_u)
    d_t = log p_student(t) - log p_teacher(t)

The mean of d over sampled tokens estimates KL(student || teacher); without a discount each token answers for itself
alone (Lu and Thinking Machines Lab 2025, https://thinkingmachines.ai/blog/on-policy-distillation), with a factor of 1
for all that follows, and the gradient is that of the KL between sequences. Distances u - t count sampled tokens: the
output of a tool between two of them takes no step.

The teacher is asked for the log-probabilities of the sampled tokens. The loss is the policy gradient of A, with d_t
under the weights being trained, so that its gradient is right where the sampler lags; later d_u are as they
were sampled.
"""

from collections.abc import Sequence
from itertools import compress
from typing import ClassVar

from stillhouse.training.head.scores import TokenLosses
from stillhouse.training.on_policy.algorithms.algorithm import Algorithm, Asks, LossInputs
from stillhouse.training.on_policy.algorithms.policy_gradient import policy_gradient
from stillhouse.training.on_policy.scored import ScoredSample


class SampledKL(Algorithm):
    """The teacher alone."""

    asks: ClassVar[Asks] = "logprobs"

    @property
    def has_advantages(self) -> bool:
        return self.config.kl_discount_factor > 0.0

    def advantages(self, group: Sequence[ScoredSample], rewards: Sequence[float | None]) -> list[list[float]]:
        discount = self.config.kl_discount_factor
        return [[-sample.kl_coef * tail for tail in later_kl(sampled_kl(sample), discount)] for sample in group]

    def losses(self, inputs: LossInputs) -> TokenLosses:
        advantages_N = inputs.advantages_N - inputs.kl_coef_N * inputs.sampled_kl_N
        return policy_gradient(inputs, advantages_N, self.config)

    def advantages_when_sampled(self, sample: ScoredSample) -> list[float]:
        known = sample.advantages or [0.0] * len(sample.token_ids)
        kls = sample.sampled_kl or [0.0] * len(sample.token_ids)
        return self.clip([advantage - sample.kl_coef * kl for advantage, kl in zip(known, kls, strict=True)])


def sampled_kl(sample: ScoredSample) -> list[float]:
    """The d of each sampled token, as it was sampled; 0.0 where no teacher scored it."""
    kls = sample.sampled_kl
    return [0.0] * sum(sample.loss_mask) if kls is None else list(compress(kls, sample.loss_mask))


def later_kl(kls: Sequence[float], discount: float) -> list[float]:
    """The sum over later tokens u > t of discount^(u - t) * kls[u], for each token t."""
    tail, tails = 0.0, []
    for kl in reversed(kls):
        tails.append(tail)
        tail = discount * (kl + tail)
    return tails[::-1]
