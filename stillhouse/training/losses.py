"""Losses of one token. Every loss is minimised; shapes are [N], one entry per loss position.

`student` is the log-probability under the weights being trained, with gradient; `teacher` and `sampling` are data.
"""

import torch
from torch import Tensor


def cross_entropy(student_logprobs_N: Tensor) -> Tensor:
    """Losses -log p_student(token): the forward KL from a teacher that is certain of the token."""
    return -student_logprobs_N


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
