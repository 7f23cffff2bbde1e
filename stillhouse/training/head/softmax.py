"""The softmax over the vocabulary: scores of targets, and the gradient of a loss of them in closed form.

Both work on a few rows at a time: the float32 copies that they need are then small, and on a CPU stay in its cache.

Dimensions: C tokens of a chunk, V vocabulary.
"""

from collections.abc import Set
from typing import Final, NamedTuple

import torch
from torch import Tensor

from stillhouse.training.head.scores import ScoreName, TokenScores

_CPU_BLOCK_ELEMENTS: Final = 1 << 20
_GPU_BLOCK_ELEMENTS: Final = 1 << 25


def block_elements(device: torch.device) -> int:
    """Elements of a matrix to treat at once: what stays in the cache of a CPU, or keeps a GPU busy."""
    return _CPU_BLOCK_ELEMENTS if device.type == "cpu" else _GPU_BLOCK_ELEMENTS


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type of sums and statistics: float32, or float64 for float64."""
    return torch.promote_types(dtype, torch.float32)


def softmax_(
    logits_CV: Tensor, targets_C: Tensor, temperature: float = 1.0, wants: Set[ScoreName] = frozenset()
) -> TokenScores:
    """Scores of `targets_C` under softmax(logits / temperature), which overwrites the logits.

    The scores are taken before the probabilities are rounded to the type of the logits.
    """
    num_rows = _num_rows(logits_CV)
    blocks = [
        _softmax_block_(logits_RV, targets_R, temperature, wants)
        for logits_RV, targets_R in zip(logits_CV.split(num_rows), targets_C.split(num_rows), strict=True)
    ]
    return TokenScores(
        targets_N=targets_C,
        logprobs_N=torch.cat([block.logprobs_N for block in blocks]),
        log_normalisers_N=torch.cat([block.log_normalisers_N for block in blocks]),
        is_top_N=torch.cat([block.is_top_N for block in blocks]),
        mean_logprobs_N=_joined([block.mean_logprobs_N for block in blocks]),
        entropy_N=_joined([block.entropy_N for block in blocks]),
    )


def _softmax_block_(logits_RV: Tensor, targets_R: Tensor, temperature: float, wants: Set[ScoreName]) -> TokenScores:
    # One fused softmax and cheap reductions: torch's exp alone would cost more on a CPU than all of this.
    scaled_RV = logits_RV if temperature == 1.0 else logits_RV.to(wide(logits_RV.dtype)) / temperature
    probabilities_RV = scaled_RV.softmax(dim=-1, dtype=wide(logits_RV.dtype))
    top_R = scaled_RV.amax(dim=-1).to(probabilities_RV.dtype)
    top_logprobs_R = probabilities_RV.amax(dim=-1).log()
    chosen_R = scaled_RV.gather(1, targets_R[:, None]).squeeze(1).to(probabilities_RV.dtype)
    log_normalisers_R = top_R - top_logprobs_R
    mean_logprobs_R = entropy_R = None
    if "mean_logprob" in wants:
        mean_logprobs_R = scaled_RV.mean(dim=-1, dtype=probabilities_RV.dtype) - log_normalisers_R
    if "entropy" in wants:
        entropy_R = log_normalisers_R - (probabilities_RV * scaled_RV).sum(dim=-1)
    logits_RV.copy_(probabilities_RV)
    return TokenScores(
        targets_N=targets_R,
        logprobs_N=chosen_R - top_R + top_logprobs_R,
        log_normalisers_N=log_normalisers_R,
        is_top_N=chosen_R >= top_R,
        mean_logprobs_N=mean_logprobs_R,
        entropy_N=entropy_R,
    )


class Slopes(NamedTuple):
    """Derivatives of a loss by the scores of each token."""

    logprobs_C: Tensor
    log_normalisers_C: Tensor
    mean_logprobs_C: Tensor | None = None


def logit_gradients_(probabilities_CV: Tensor, scores: TokenScores, slopes: Slopes) -> None:
    """Overwrites p = softmax(z) with the gradient by z of a loss L of the scores.

    With y the target, a = dL/dlog p_y, b = dL/dlog Z and c = dL/dmean(log p), from dlog p_y/dz = e_y - p,
    dlog Z/dz = p and dmean(log p)/dz = 1/V - p:

        dL/dz = (b - a - c) p + c / V + a e_y

    The target's own entry is computed from its score: where p_y is close to 1 it is a difference, of which a rounded
    p_y would leave no digit.
    """
    a_C, b_C, c_C = slopes
    factors_C = b_C - a_C if c_C is None else b_C - a_C - c_C
    shares_C = torch.zeros_like(a_C) if c_C is None else c_C / probabilities_CV.shape[1]
    num_rows = _num_rows(probabilities_CV)
    for block_RV, factors_R, shares_R in zip(
        probabilities_CV.split(num_rows), factors_C.split(num_rows), shares_C.split(num_rows), strict=True
    ):
        gradients_RV = block_RV * factors_R[:, None]
        if c_C is not None:
            gradients_RV += shares_R[:, None]
        block_RV.copy_(gradients_RV)
    chosen_C = factors_C * scores.logprobs_N.exp() + shares_C + a_C
    probabilities_CV.scatter_(1, scores.targets_N[:, None], chosen_C[:, None].to(probabilities_CV.dtype))


def _joined(parts: list[Tensor | None]) -> Tensor | None:
    wanted = [part for part in parts if part is not None]
    return torch.cat(wanted) if wanted else None


def _num_rows(matrix_CV: Tensor) -> int:
    return max(1, block_elements(matrix_CV.device) // matrix_CV.shape[1])
