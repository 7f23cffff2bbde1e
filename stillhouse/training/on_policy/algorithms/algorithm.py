"""What a loss of sampled tokens is computed from. Dimensions: N sampled tokens."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class LossInputs:
    """Inputs for N sampled tokens, of any trajectories. Everything about a teacher is 0.0 where none scored."""

    student_logprobs_N: Tensor
    """Under the weights being trained; with gradient, as is `divergence_N`."""
    sampling_logprobs_N: Tensor
    old_logprobs_N: Tensor | None
    """The student's before the first update on its batch; None where that is not needed (`Objective`)."""
    advantages_N: Tensor
    """The values of `GRPO.advantages`; 0.0 where it makes none."""
    kl_coef_N: Tensor
    """Factor of the KL to their teacher."""
    sampled_kl_N: Tensor
    """d = log p_student - log p_teacher of the token, under the weights being trained."""
    divergence_N: Tensor | None
    """Sum of the terms of `GRPO.divergence`, where there are any."""
