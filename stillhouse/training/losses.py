"""Losses of one token. Every loss is minimised; shapes are [N], one entry per loss position.

Student log-probabilities are those under the weights being trained, with gradient; what teacher and sampling know is
data. A ratio divides the student's probability by the one that the token was sampled with.
"""

from typing import NamedTuple

import torch
from torch import Tensor


def cross_entropy(student_logprobs_N: Tensor) -> Tensor:
    """Return losses -log p_student(token): the forward KL from a teacher that is certain of the token."""
    return -student_logprobs_N


def soft_targets(hard_losses_N: Tensor, divergence_N: Tensor, *, hard_weight: float, temperature: float) -> Tensor:
    """Return losses T^2 KL(teacher || student) + hard_weight times the cross-entropy.

    Both distributions of the KL have their logits divided by T; its gradient by the logits shrinks with 1 / T^2, which
    the factor undoes, so that the weight means the same at each T (Hinton et al., arXiv 1503.02531, section 2).
    """
    return temperature**2 * divergence_N + hard_weight * hard_losses_N


def reverse_kl(student_logprobs_N: Tensor, teacher_logprobs_N: Tensor) -> Tensor:
    """Return samples of the reverse KL, log p_student(token) - log p_teacher(token), without gradient.

    The estimator k1 of Schulman (http://joschu.net/blog/kl-approx.html): for tokens sampled from the student their mean
    estimates KL(student || teacher) without bias; one alone may be negative. To minimise them directly would be an
    error: the expected gradient is zero.
    """
    return student_logprobs_N.detach() - teacher_logprobs_N


def reverse_kl_k3(student_logprobs_N: Tensor, teacher_logprobs_N: Tensor) -> Tensor:
    """Return Schulman's estimator k3, r - 1 - log r with r = p_teacher / p_student, for the student's tokens.

    An unbiased value that is never negative, good to look at. Its expected gradient is of the other direction,
    KL(teacher || student), with weights r that have no bound.
    """
    log_ratios_N = teacher_logprobs_N - student_logprobs_N
    return log_ratios_N.exp() - 1.0 - log_ratios_N


def importance_sampling(student_logprobs_N: Tensor, sampling_logprobs_N: Tensor, advantages_N: Tensor) -> Tensor:
    """Return losses -ratio * A with ratio = exp(log p_student - log p_sampling) and A held fixed.

    It has the gradient of -E[A] under the student, whatever distribution the tokens were sampled from (Schulman et
    al., arXiv 1502.05477, equation 14).
    """
    return -torch.exp(student_logprobs_N - sampling_logprobs_N) * advantages_N.detach()


def reinforce(student_logprobs_N: Tensor, advantages_N: Tensor) -> Tensor:
    """Return losses -A log p_student(token) with A held fixed (Williams 1992), for the student's tokens."""
    return -student_logprobs_N * advantages_N.detach()


class ClippedLosses(NamedTuple):
    """Losses that bound the ratio."""

    losses_N: Tensor
    is_clipped_N: Tensor
    """True where the bound decides: what lies beyond it changes nothing."""


def ppo(
    student_logprobs_N: Tensor,
    sampling_logprobs_N: Tensor,
    advantages_N: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> ClippedLosses:
    """Return losses -min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A).

    Token by token: Schulman et al., arXiv 1707.06347, equation 7, with bounds of their own below and above as in DAPO
    (Yu et al., arXiv 2503.14476, equation 10).
    """
    advantages_N = advantages_N.detach()
    ratios_N = torch.exp(student_logprobs_N - sampling_logprobs_N)
    gains_N = torch.minimum(ratios_N * advantages_N, ratios_N.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages_N)
    is_clipped_N = torch.where(
        advantages_N < 0.0, ratios_N < 1.0 - clip_low, (ratios_N > 1.0 + clip_high) & (advantages_N > 0.0)
    )
    return ClippedLosses(-gains_N, is_clipped_N)


def truncated_ratios(ratios_N: Tensor, largest: float) -> Tensor:
    """Return min(ratio, largest): truncated importance sampling (Ionides 2008).

    The bias in the expectation of f is at most max|f| E[(ratio - largest)+].
    """
    return ratios_N.clamp(max=largest)


def masked_ratios(ratios_N: Tensor, least: float, largest: float) -> Tensor:
    """Return the ratio where it is between `least` and `largest`, 0 elsewhere: IcePop (arXiv 2510.18855)."""
    return torch.where((ratios_N >= least) & (ratios_N <= largest), ratios_N, 0.0)
