"""The softmax over the vocabulary: scores of targets, and the gradient of a loss of them in closed form.

Both work on a few rows at a time: the float32 copies that they need are then small, and on a CPU stay in its cache.

Dimensions: C tokens of a chunk, V vocabulary.
"""

from collections.abc import Iterator, Set
from typing import Final, NamedTuple

import torch
from torch import Tensor

from stillhouse.training.head.scores import ScoreName, TokenScores

_THREAD_BLOCK_ELEMENTS: Final = 1 << 19
_GPU_BLOCK_ELEMENTS: Final = 1 << 25


def block_elements(device: torch.device) -> int:
    """Elements to treat at once: what stays in the cache of a CPU's cores, or keeps a GPU busy."""
    return torch.get_num_threads() * _THREAD_BLOCK_ELEMENTS if device.type == "cpu" else _GPU_BLOCK_ELEMENTS


def block_rows(matrix: Tensor) -> int:
    """Rows of a matrix to treat at once."""
    return max(1, min(len(matrix), block_elements(matrix.device) // matrix.shape[1]))


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type of sums and statistics: float32, or float64 for float64."""
    return torch.promote_types(dtype, torch.float32)


def softmax_(
    logits_CV: Tensor, targets_C: Tensor, temperature: float = 1.0, wants: Set[ScoreName] = frozenset()
) -> TokenScores:
    """Scores of `targets_C` under softmax(logits / temperature), which overwrites the logits.

    The scores are taken before the probabilities are rounded to the type of the logits.
    """
    scratch_2RV = logits_CV.new_empty((2, block_rows(logits_CV), logits_CV.shape[1]), dtype=wide(logits_CV.dtype))
    blocks = [
        _softmax_block_(logits_RV, targets_R, temperature, wants, *scratch_2RV[:, : len(logits_RV)])
        for logits_RV, targets_R in _split(logits_CV, targets_C)
    ]
    return TokenScores(
        targets_N=targets_C,
        logprobs_N=torch.cat([block.logprobs_N for block in blocks]),
        log_normalisers_N=torch.cat([block.log_normalisers_N for block in blocks]),
        is_top_N=torch.cat([block.is_top_N for block in blocks]),
        mean_logprobs_N=_joined([block.mean_logprobs_N for block in blocks]),
        entropy_N=_joined([block.entropy_N for block in blocks]),
    )


def _softmax_block_(
    logits_RV: Tensor,
    targets_R: Tensor,
    temperature: float,
    wants: Set[ScoreName],
    scaled_RV: Tensor,
    probabilities_RV: Tensor,
) -> TokenScores:
    torch.div(logits_RV, temperature, out=scaled_RV)
    # A fused softmax and cheap reductions: on a CPU torch's exp alone costs more than all of this.
    torch.softmax(scaled_RV, dim=-1, out=probabilities_RV)
    logits_RV.copy_(probabilities_RV)
    top_R, top_logprobs_R = scaled_RV.amax(dim=-1), probabilities_RV.amax(dim=-1).log()
    chosen_R = scaled_RV.gather(1, targets_R[:, None]).squeeze(1)
    log_normalisers_R = top_R - top_logprobs_R
    return TokenScores(
        targets_N=targets_R,
        logprobs_N=chosen_R - top_R + top_logprobs_R,
        log_normalisers_N=log_normalisers_R,
        is_top_N=chosen_R >= top_R,
        mean_logprobs_N=scaled_RV.mean(dim=-1) - log_normalisers_R if "mean_logprob" in wants else None,
        entropy_N=log_normalisers_R - scaled_RV.mul_(probabilities_RV).sum(dim=-1) if "entropy" in wants else None,
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
    vocabulary = probabilities_CV.shape[1]
    a_C, b_C, c_C = slopes
    factors_C = b_C - a_C if c_C is None else b_C - a_C - c_C
    shares_C = torch.zeros_like(a_C) if c_C is None else c_C / vocabulary
    chosen_C = factors_C * scores.logprobs_N.exp() + shares_C + a_C
    scratch_RV = probabilities_CV.new_empty((block_rows(probabilities_CV), vocabulary), dtype=a_C.dtype)
    for block_RV, *columns in _split(probabilities_CV, factors_C, shares_C, chosen_C, scores.targets_N):
        factors_R1, shares_R1, chosen_R1, targets_R1 = (column_R[:, None] for column_R in columns)
        gradients_RV = scratch_RV[: len(block_RV)].copy_(block_RV).mul_(factors_R1)
        if c_C is not None:
            gradients_RV += shares_R1
        block_RV.copy_(gradients_RV.scatter_(1, targets_R1, chosen_R1))


def _joined(parts: list[Tensor | None]) -> Tensor | None:
    wanted = [part for part in parts if part is not None]
    return torch.cat(wanted) if wanted else None


def _split(matrix_CV: Tensor, *columns: Tensor) -> Iterator[tuple[Tensor, ...]]:
    num_rows = block_rows(matrix_CV)
    return zip(*(tensor.split(num_rows) for tensor in (matrix_CV, *columns)), strict=True)
