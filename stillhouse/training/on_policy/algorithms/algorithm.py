"""The decisions of an algorithm: what is asked of the teacher, what credit a token gets, and which loss.

Credit comes in two parts. `Algorithm.advantages` is computed once, when the batch of rollouts has been sampled, scored
and rewarded; it is made in float64 and stored with the batch. `Algorithm.losses` is computed under the weights being
trained, and may add to it what depends on them. Dimensions: N sampled tokens.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from stillhouse.config import Divergence, OnPolicyConfig
from stillhouse.training.head.scores import TokenLosses
from stillhouse.training.on_policy.scored import ScoredSample


@dataclass(frozen=True, slots=True)
class LossInputs:
    """Inputs for N sampled tokens, of any trajectories. Everything about a teacher is 0.0 where none scored."""

    student_logprobs_N: Tensor
    """Under the weights being trained; with gradient, as is `divergence_N`."""
    sampling_logprobs_N: Tensor
    old_logprobs_N: Tensor | None
    """The student's before the first update on its batch; None where that is not needed (`Objective`)."""
    advantages_N: Tensor
    """The values of `Algorithm.advantages`; 0.0 where it makes none."""
    kl_coef_N: Tensor
    """Factor of the KL to their teacher."""
    sampled_kl_N: Tensor
    """d = log p_student - log p_teacher of the token, under the weights being trained."""
    divergence_N: Tensor | None
    """Sum of the terms of `Algorithm.divergence`, where there are any."""


class Algorithm(ABC):
    """One method of on-policy distillation.

    Args:
        config: chose the algorithm, and has its parameters.
    """

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

    @abstractmethod
    def advantages(self, group: Sequence[ScoredSample], rewards: Sequence[float | None]) -> list[list[float]]:
        """Return the advantages known before training: for each trajectory, of its sampled tokens in order.

        Called where `has_advantages`.

        Args:
            group: the trajectories of one prompt.
            rewards: of each; None where there is none, as where `reward_coef` is 0.
        """

    @abstractmethod
    def losses(self, inputs: LossInputs) -> TokenLosses:
        """Return the loss of each token, with means to report."""

    def advantages_when_sampled(self, sample: ScoredSample) -> list[float]:
        """Return the advantages under the weights that sampled, aligned with `token_ids`: never to train on."""
        return self.clip(sample.advantages or [0.0] * len(sample.token_ids))

    def clip(self, advantages: list[float]) -> list[float]:
        """Return the advantages within `adv_clip`."""
        bound = self.config.adv_clip
        return advantages if bound is None else [min(max(advantage, -bound), bound) for advantage in advantages]
