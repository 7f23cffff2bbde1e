"""Losses of one token. Every loss is minimised; shapes are [N], one entry per loss position.

Student log-probabilities and normalisers are those under the weights being trained, with gradient; what teacher and
sampling know is data.
"""

import torch
from torch import Tensor


def cross_entropy(
    student_logprobs_N: Tensor, mean_logprobs_N: Tensor | None = None, label_smoothing: float = 0.0
) -> Tensor:
    """Losses -(1 - e) log p_student(token) - e mean_v log p_student(v), with e the label smoothing.

    The cross-entropy to a teacher that gives e to all tokens of the vocabulary alike and the rest to the token (Szegedy
    et al., arXiv 1512.00567, section 7; as torch's `cross_entropy` has it). Without smoothing it is the forward KL from
    a teacher that is certain of the token.

    Args:
        student_logprobs_N: log-probability of each token.
        mean_logprobs_N: mean over the vocabulary of the log-probabilities; needed only for smoothing.
        label_smoothing: share e of the probability that is spread out, at least 0 and below 1.
    """
    if label_smoothing == 0.0:
        return -student_logprobs_N
    if mean_logprobs_N is None:
        raise ValueError("label smoothing needs mean_logprobs_N; expected a method that wants `mean_logprob`")
    return -(1.0 - label_smoothing) * student_logprobs_N - label_smoothing * mean_logprobs_N


def dft(student_logprobs_N: Tensor) -> Tensor:
    """Losses -p_student(token) log p_student(token) with the first factor held fixed.

    Dynamic fine-tuning (Wu et al., arXiv 2508.05629): the gradient of SFT is a policy gradient whose reward
    is 1 / p_student(token); the factor takes that out, so that improbable tokens no longer dominate.
    """
    return -student_logprobs_N.detach().exp() * student_logprobs_N


def z_loss(log_normalisers_N: Tensor, coef: float) -> Tensor:
    """Losses coef * (log Z)^2 that keep the softmax's normaliser Z near 1.

    PaLM (Chowdhery et al., arXiv 2204.02311, section 5) takes coef = 1e-4; ST-MoE (Zoph et al., arXiv 2202.08906) does
    the same to its routers.
    """
    return coef * log_normalisers_N.square()


def reverse_kl(student_logprobs_N: Tensor, teacher_logprobs_N: Tensor) -> Tensor:
    """Samples of the reverse KL, log p_student(token) - log p_teacher(token), without gradient.

    For tokens sampled from the student their mean estimates KL(student || teacher); one alone may be negative. To
    minimise them directly would be an error: the expected gradient is zero.
    """
    return student_logprobs_N.detach() - teacher_logprobs_N


def importance_sampling(student_logprobs_N: Tensor, sampling_logprobs_N: Tensor, advantages_N: Tensor) -> Tensor:
    """Losses -ratio * A with ratio = exp(log p_student - log p_sampling) and A held fixed.

    Its gradient is that of -E[A] under the student, whatever distribution the tokens were sampled from.
    """
    return -torch.exp(student_logprobs_N - sampling_logprobs_N) * advantages_N.detach()
