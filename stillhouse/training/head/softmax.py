"""The softmax over the vocabulary: scores of targets, and the gradient of a loss of them, both in closed form.

Dimensions: C tokens of a chunk, V vocabulary.
"""

from collections.abc import Set
from typing import NamedTuple

import torch
from torch import Tensor

from stillhouse.training.head.scores import ScoreName, TokenScores


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type of sums and statistics: float32, or float64 for float64."""
    return torch.promote_types(dtype, torch.float32)


def score_targets(logits_CV: Tensor, targets_C: Tensor, wants: Set[ScoreName] = frozenset()) -> TokenScores:
    """Scores of `targets_C` under softmax(logits), at least in float32; the logits are only read."""
    logprobs_CV = logits_CV.log_softmax(dim=-1, dtype=wide(logits_CV.dtype))
    logprobs_C = logprobs_CV.gather(1, targets_C[:, None]).squeeze(1)
    return TokenScores(
        targets_N=targets_C,
        logprobs_N=logprobs_C,
        log_normalisers_N=logits_CV.gather(1, targets_C[:, None]).squeeze(1) - logprobs_C,
        is_top_N=logprobs_C >= logprobs_CV.amax(dim=-1),
        mean_logprobs_N=logprobs_CV.mean(dim=-1) if "mean_logprob" in wants else None,
        entropy_N=-(logprobs_CV.exp() * logprobs_CV).sum(dim=-1) if "entropy" in wants else None,
    )


class Slopes(NamedTuple):
    """Derivatives of a loss by the scores of the tokens it is made of."""

    logprobs_C: Tensor
    log_normalisers_C: Tensor
    mean_logprobs_C: Tensor | None = None


def logit_gradients_(logits_CV: Tensor, targets_C: Tensor, log_normalisers_C: Tensor, slopes: Slopes) -> None:
    """Overwrites logits z with the gradient of a loss L of their scores.

    With p = softmax(z), y the target, a = dL/dlog p_y, b = dL/dlog Z and c = dL/dmean(log p), from
    dlog p_y/dz = e_y - p, dlog Z/dz = p and dmean(log p)/dz = 1/V - p:

        dL/dz = (b - a - c) p + c / V + a e_y
    """
    a_C, b_C, c_C = slopes
    factors_C = b_C - a_C if c_C is None else b_C - a_C - c_C
    gradients_CV = (logits_CV - log_normalisers_C[:, None]).exp_().mul_(factors_C[:, None])
    if c_C is not None:
        gradients_CV += c_C[:, None] / logits_CV.shape[1]
    gradients_CV.scatter_add_(1, targets_C[:, None], a_C[:, None])
    logits_CV.copy_(gradients_CV)
