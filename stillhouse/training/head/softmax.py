"""The softmax over the vocabulary: scores of targets, and the gradient of a loss of them in closed form.

Both work in place. Steps that need a float32 copy are done some rows at a time, so that the copy stays in the cache of
a CPU; others are done at once, as threads that often wait for each other are slow on a busy machine.

Dimensions: C tokens of a chunk, R rows done at once, V vocabulary.
"""

from typing import Final, NamedTuple

import torch
from torch import Tensor

from stillhouse.training.head.scores import TokenScores

_CPU_BLOCK_ELEMENTS: Final = 1 << 21
_THREAD_BLOCK_ELEMENTS: Final = 1 << 19
_GPU_BLOCK_ELEMENTS: Final = 1 << 25


def block_elements(device: torch.device) -> int:
    """Return how many elements to treat at once: few for a CPU's cache but some for each thread, many for a GPU."""
    if device.type == "cpu":
        return max(_CPU_BLOCK_ELEMENTS, torch.get_num_threads() * _THREAD_BLOCK_ELEMENTS)
    return _GPU_BLOCK_ELEMENTS


def block_rows(matrix: Tensor) -> int:
    """Return how many rows of a matrix to treat at once."""
    return max(1, min(len(matrix), block_elements(matrix.device) // matrix.shape[1]))


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the type of sums and statistics: float32, or float64 for float64."""
    return torch.promote_types(dtype, torch.float32)


def softmax_(
    logits_CV: Tensor, targets_C: Tensor, temperature: float = 1.0, *, wants_entropy: bool = False
) -> TokenScores:
    """Return scores of `targets_C` under softmax(logits / temperature), which overwrites the logits.

    The scores are taken before the probabilities are rounded to the type of the logits.
    """
    is_narrow = logits_CV.dtype != wide(logits_CV.dtype)
    num_rows, scratch = _scratch(logits_CV, is_narrow + wants_entropy)
    blocks = []
    for logits_RV, targets_R in zip(logits_CV.split(num_rows), targets_C.split(num_rows), strict=True):
        copies_RV = [copy_RV[: len(logits_RV)] for copy_RV in scratch]
        scaled_RV = copies_RV[0].copy_(logits_RV) if copies_RV else logits_RV
        probabilities_RV = copies_RV[-1] if is_narrow else logits_RV
        blocks.append(_softmax_block_(scaled_RV, probabilities_RV, targets_R, temperature, wants_entropy))
        if is_narrow:
            logits_RV.copy_(probabilities_RV)
    entropies = [block.entropy_N for block in blocks if block.entropy_N is not None]
    return TokenScores(
        targets_N=targets_C,
        logprobs_N=torch.cat([block.logprobs_N for block in blocks]),
        log_normalisers_N=torch.cat([block.log_normalisers_N for block in blocks]),
        is_top_N=torch.cat([block.is_top_N for block in blocks]),
        entropy_N=torch.cat(entropies) if entropies else None,
    )


def _softmax_block_(
    logits_RV: Tensor, probabilities_RV: Tensor, targets_R: Tensor, temperature: float, wants_entropy: bool
) -> TokenScores:
    """Return scores; write the probabilities to the second tensor, which may be the first unless entropy is wanted."""
    if temperature != 1.0:
        logits_RV /= temperature
    top_R = logits_RV.amax(dim=-1)
    chosen_R = logits_RV.gather(1, targets_R[:, None]).squeeze(1)
    # A fused softmax and the largest probability: on a CPU torch's exp alone costs more than both.
    torch.softmax(logits_RV, dim=-1, out=probabilities_RV)
    top_logprobs_R = probabilities_RV.amax(dim=-1).log()
    log_normalisers_R = top_R - top_logprobs_R
    return TokenScores(
        targets_N=targets_R,
        logprobs_N=chosen_R - top_R + top_logprobs_R,
        log_normalisers_N=log_normalisers_R,
        is_top_N=chosen_R >= top_R,
        entropy_N=log_normalisers_R - logits_RV.mul_(probabilities_RV).sum(dim=-1) if wants_entropy else None,
    )


class Slopes(NamedTuple):
    """Derivatives of a loss by the scores of each token."""

    logprobs_C: Tensor
    divergence_C: Tensor | None = None


def target_gradients(scores: TokenScores, slopes: Slopes) -> Tensor:
    """Return the gradient by each target's own logit, a (1 - p_y).

    It is computed from the score: where p_y is close to 1 it is a difference that a rounded p_y would cancel.
    """
    a_C = slopes.logprobs_C
    return a_C - a_C * scores.logprobs_N.detach().exp()


def logit_gradients_(
    probabilities_CV: Tensor, scores: TokenScores, slopes: Slopes, divergence_gradients_CS: Tensor | None = None
) -> None:
    """Overwrite p = softmax(z) with the gradient by z of a loss L of the scores.

    With y the target and a = dL/dlog p_y, from dlog p_y/dz = e_y - p:

        dL/dz = a e_y - a p

    To that comes dL/ddivergence times the divergence's own gradient by the first S logits.
    """
    a_C, d_C = slopes
    num_rows, scratch = _scratch(probabilities_CV, int(probabilities_CV.dtype != a_C.dtype))
    columns = [
        column_C[:, None].split(num_rows) for column_C in (-a_C, scores.targets_N, target_gradients(scores, slopes))
    ]
    blocks = probabilities_CV.split(num_rows)
    for number, (block_RV, factors_R1, targets_R1, chosen_R1) in enumerate(zip(blocks, *columns, strict=True)):
        gradients_RV = scratch[0][: len(block_RV)].copy_(block_RV) if scratch else block_RV
        gradients_RV.mul_(factors_R1)
        gradients_RV.scatter_(1, targets_R1, chosen_R1)
        if d_C is not None and divergence_gradients_CS is not None:
            rows = slice(number * num_rows, number * num_rows + len(block_RV))
            weighted_RS = divergence_gradients_CS[rows].to(gradients_RV.dtype)
            gradients_RV[:, : weighted_RS.shape[1]].addcmul_(weighted_RS, d_C[rows, None])
        if scratch:
            block_RV.copy_(gradients_RV)


def _scratch(matrix_CV: Tensor, num_copies: int) -> tuple[int, list[Tensor]]:
    """Return rows to treat at once, and buffers for `num_copies` float32 copies of them."""
    num_rows = block_rows(matrix_CV) if num_copies else max(1, len(matrix_CV))
    shape = (num_rows, matrix_CV.shape[1])
    return num_rows, [matrix_CV.new_empty(shape, dtype=wide(matrix_CV.dtype)) for _ in range(num_copies)]
