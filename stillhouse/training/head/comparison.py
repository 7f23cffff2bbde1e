"""Compares student and teacher at the loss positions of a microbatch, a chunk and a block of rows at a time.

Dimensions: N loss positions, C those of a chunk, R rows done at once, V vocabulary of the student, S shared ids.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from stillhouse.config import Divergence
from stillhouse.serving.score import UNSCALED, LogitScaling
from stillhouse.training.head.compiled import by_rows
from stillhouse.training.head.divergence import divergences
from stillhouse.training.head.forms import Pair
from stillhouse.training.head.layer import OutputLayer
from stillhouse.training.head.scores import Reference
from stillhouse.training.head.softmax import wide


class ComparisonResult(NamedTuple):
    """Comparison of a chunk."""

    divergence_C: Tensor | None = None
    """The weighted sum of the terms; None without terms."""
    reference_logprobs_C: Tensor | None = None
    gradients_CS: Tensor | None = None
    """Of each token's divergence by its logits / softness of the shared ids, in the type of the logits."""


class TeacherComparison:
    """Computes a teacher's logits and compares the student's with them, by compiled kernels where `compiled`.

    `temperature` divides the teacher's logits, and `softness` the student's: the temperature over any factor that these
    still lack. `like_CV` is the buffer of the student's logits, whose size, type and device the teacher's has.

    Raises:
        ValueError: the reference has another number of positions than there are targets, shares more ids than either
            has output rows, or exchanges ids that are not shared.
    """

    def __init__(
        self,
        reference: Reference,
        targets_N: Tensor,
        terms: Sequence[Divergence],
        temperature: float,
        like_CV: Tensor,
        *,
        softness: float,
        compiled: bool = False,
    ) -> None:
        self._settings = (tuple(terms), temperature, softness, reference.scaling)
        self._targets_N = targets_N
        self._compiled = compiled
        shared, head, device = reference.vocabulary, reference.head, like_CV.device
        if len(reference.hidden_NR) != len(targets_N):
            raise ValueError(f"the reference has {len(reference.hidden_NR)} positions for {len(targets_N)} targets")
        if shared > min(like_CV.shape[1], len(head.weight)):
            raise ValueError(
                f"student and teacher share {shared} ids but have {like_CV.shape[1]} and {len(head.weight)} output rows"
            )
        if reference.exchanged is not None and max(reference.exchanged) >= shared:
            raise ValueError(f"the ids {reference.exchanged} are exchanged, but those below {shared} are shared")
        self._exchanged = reference.exchanged
        bias_S = None if head.bias is None else head.bias[:shared].to(device)
        self._layer = OutputLayer(
            reference.hidden_NR.to(device), head.weight[:shared].to(device), bias_S, like_CV.dtype
        )
        self._buffer_CS = like_CV.new_empty((len(like_CV), shared))

    def chunk(self, chunk: slice, logits_CV: Tensor) -> ComparisonResult:
        """Compare a chunk, given its logits under the student."""
        reference_CS = self._layer.logits(chunk, self._buffer_CS)
        if self._exchanged is not None:
            both = list(self._exchanged)
            reference_CS[:, both] = reference_CS[:, both[::-1]]
        blocks = by_rows(
            _compare_,
            *(reference_CS, logits_CV, self._targets_N[chunk]),
            settings=self._settings,
            is_compiled=self._compiled,
        )
        values, logprobs = zip(*blocks, strict=True)
        if not self._settings[0]:
            return ComparisonResult(reference_logprobs_C=torch.cat(logprobs))
        return ComparisonResult(torch.cat(values), torch.cat(logprobs), reference_CS)


def _compare_(
    reference_RS: Tensor,
    logits_RV: Tensor,
    targets_R: Tensor,
    terms: Sequence[Divergence],
    temperature: float,
    softness: float,
    scaling: LogitScaling,
) -> tuple[Tensor | None, Tensor]:
    """Return values and log-probabilities of some rows; the gradient overwrites the teacher's logits."""
    shared = reference_RS.shape[1]
    log_p_RS = log_probabilities(logits_RV[:, :shared], UNSCALED, softness)
    log_q_RS = log_probabilities(reference_RS, scaling, temperature)
    is_shared_R, ids_R = targets_R < shared, targets_R.clamp(max=shared - 1)
    logprobs_R = log_q_RS.gather(1, ids_R[:, None]).squeeze(1).where(is_shared_R, -torch.inf)
    if not terms:
        return None, logprobs_R
    values_R, gradients_RS = divergences(Pair(log_p_RS, log_q_RS), terms)
    reference_RS.copy_(gradients_RS)
    return values_R, logprobs_R


def log_probabilities(logits_RS: Tensor, scaling: LogitScaling, temperature: float) -> Tensor:
    """Return the log-softmax of scaled logits / temperature, in float32 or float64."""
    logits_RS = scaling.apply_(logits_RS.to(wide(logits_RS.dtype)))
    return (logits_RS if temperature == 1.0 else logits_RS / temperature).log_softmax(dim=-1)
