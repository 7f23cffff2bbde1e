"""Compares student and teacher where of the teacher only the most probable tokens and the target are known.

The target counts for itself where it is none of the best. That is where a reverse KL needs it: a token that the student
sampled and the teacher finds improbable is else merged with all others.

Dimensions: N loss positions, C those of a chunk, R rows done at once, V vocabulary of the student, K the teacher's most
probable tokens.
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from stillhouse.config import Divergence
from stillhouse.serving.score import UNSCALED
from stillhouse.training.head.comparison import ComparisonResult, log_probabilities
from stillhouse.training.head.compiled import by_rows
from stillhouse.training.head.divergence import TeacherTop, top_divergences
from stillhouse.training.head.scores import TopReference
from stillhouse.training.head.softmax import wide

_LEAST_REST: Final = 2.0**-10
"""Share of the others that is left without the target: less is rounding of their mass in half precision."""


class TopComparison:
    """The comparison with a teacher's most probable tokens; arguments and errors are those of `TeacherComparison`."""

    def __init__(
        self,
        reference: TopReference,
        targets_N: Tensor,
        terms: Sequence[Divergence],
        like_CV: Tensor,
        *,
        softness: float,
        compiled: bool = False,
    ) -> None:
        if len(reference.ids_NK) != len(targets_N):
            raise ValueError(f"the reference has {len(reference.ids_NK)} positions for {len(targets_N)} targets")
        self._settings, self._compiled = (softness, tuple(terms)), compiled
        dtype = wide(like_CV.dtype)
        self._target_logprobs_N = reference.target_logprobs_N.to(like_CV.device, dtype)
        self._top = _normalised(reference, targets_N, like_CV.shape[1], dtype)
        self._gradients_CV = torch.empty_like(like_CV)

    def chunk(self, chunk: slice, logits_CV: Tensor) -> ComparisonResult:
        logprobs_C = self._target_logprobs_N[chunk]
        if not self._settings[1]:
            return ComparisonResult(reference_logprobs_C=logprobs_C)
        gradients_CV = self._gradients_CV[: len(logits_CV)]
        inputs = (gradients_CV, logits_CV, *(column_N[chunk] for column_N in self._top))
        values = by_rows(_compare_top_, *inputs, settings=self._settings, is_compiled=self._compiled)
        return ComparisonResult(torch.cat(values), logprobs_C, gradients_CV)


def _normalised(reference: TopReference, targets_N: Tensor, size: int, dtype: torch.dtype) -> TeacherTop:
    """Return the teacher's tokens with probabilities that sum to 1, which rounding may have changed.

    The mass of ids that the student does not have, rows of the teacher's embedding beyond the vocabulary, goes to the
    others.
    """
    device = targets_N.device
    ids_NK, logprobs_NK = reference.ids_NK.to(device), reference.logprobs_NK.to(device, dtype)
    tail_N1, targets_N1 = reference.log_tail_N.to(device, dtype)[:, None], targets_N[:, None]
    is_best_N1 = (ids_NK == targets_N1).any(dim=1, keepdim=True)
    target_N1 = reference.target_logprobs_N.to(device, dtype)[:, None].masked_fill(is_best_N1, -torch.inf)
    tail_N1 = tail_N1 + torch.log1p(-(target_N1 - tail_N1).exp().clamp(max=1.0 - _LEAST_REST))
    is_known_NK = ids_NK < size
    unknown_N1 = logprobs_NK.masked_fill(is_known_NK, -torch.inf).logsumexp(1, keepdim=True)
    known_NK = logprobs_NK.masked_fill(~is_known_NK, -torch.inf)
    normalised = torch.cat([target_N1, known_NK, tail_N1.logaddexp(unknown_N1)], dim=1).log_softmax(dim=1)
    ids_NJ = torch.cat([targets_N1.masked_fill(is_best_N1, size), ids_NK.clamp(max=size)], dim=1)
    return TeacherTop(ids_NJ, normalised[:, :-1], normalised[:, -1:])


def _compare_top_(
    gradients_RV: Tensor,
    logits_RV: Tensor,
    ids_RK: Tensor,
    logprobs_RK: Tensor,
    log_tail_R1: Tensor,
    softness: float,
    terms: Sequence[Divergence],
) -> Tensor:
    """Return the values of some rows; write their gradients."""
    log_p_RV = log_probabilities(logits_RV, UNSCALED, softness)
    values_R, found_RV = top_divergences(log_p_RV, TeacherTop(ids_RK, logprobs_RK, log_tail_R1), terms)
    gradients_RV.copy_(found_RV)
    return values_R
