"""Credit of one sampled token in pure on-policy distillation."""

from torch import Tensor

from stillhouse.training.losses import reverse_kl


def distillation_advantages(
    student_logprobs_N: Tensor, teacher_logprobs_N: Tensor, kl_coef: float, adv_clip: float | None
) -> Tensor:
    """Advantages -kl_coef * (log p_student - log p_teacher), clipped to [-adv_clip, adv_clip], without gradient, [N].

    The student's log-probabilities are those of the weights being trained, not of the weights that sampled: only then
    is the importance-sampling gradient exactly that of KL(student || teacher) when the two differ. With the sampler's
    own log-probabilities the loss would also reward moving away from the sampler.
    """
    advantages_N = -kl_coef * reverse_kl(student_logprobs_N, teacher_logprobs_N)
    return advantages_N if adv_clip is None else advantages_N.clamp(-adv_clip, adv_clip)
