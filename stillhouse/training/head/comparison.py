"""Compares student and teacher at the loss positions of a microbatch, a chunk and a block of rows at a time.

Dimensions: N loss positions, C those of a chunk, R rows done at once, V vocabulary of the student, S shared ids.
"""

from collections.abc import Sequence, Set
from dataclasses import replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from stillhouse.config import Divergence
from stillhouse.serving.score import UNSCALED, LogitScaling
from stillhouse.training.head.compiled import MIN_TOKENS, any_length, compiled
from stillhouse.training.head.divergence import divergences
from stillhouse.training.head.forms import Pair
from stillhouse.training.head.layer import OutputLayer
from stillhouse.training.head.scores import Reference, ScoreName, TokenScores
from stillhouse.training.head.softmax import block_rows, wide


class ComparisonResult(NamedTuple):
    """Comparison of a chunk: three of the `TokenScores`, where they are wanted, and a gradient."""

    divergence_C: Tensor | None = None
    reverse_kl_C: Tensor | None = None
    reference_logprobs_C: Tensor | None = None
    gradients_CS: Tensor | None = None
    """Of each token's divergence by its logits / softness of the shared ids, in the type of the logits."""

    def added_to(self, scores: TokenScores) -> TokenScores:
        """The scores with this comparison; without a teacher, the student is compared with itself."""
        logprobs_C = self.reference_logprobs_C
        if logprobs_C is None and (self.divergence_C is not None or self.reverse_kl_C is not None):
            logprobs_C = scores.logprobs_N.clone()
        return replace(
            scores,
            divergence_N=self.divergence_C,
            reverse_kl_N=self.reverse_kl_C,
            reference_logprobs_N=logprobs_C,
        )


class _Settings(NamedTuple):
    terms: tuple[Divergence, ...]
    temperature: float
    """Divides the teacher's logits."""
    softness: float
    """Divides the student's logits."""
    scaling: LogitScaling
    """Of the teacher's logits."""
    wants_reverse_kl: bool


class Comparison(Protocol):
    """Compares the student with a teacher."""

    def chunk(self, chunk: slice, logits_CV: Tensor) -> ComparisonResult:
        """Compares a chunk, given its logits under the student."""


class TeacherComparison:
    """Computes a teacher's logits and compares the student's with them.

    Args:
        reference: the teacher; None for no teacher.
        targets_N: token ids.
        terms: terms of the divergence; may be none.
        temperature: divides the teacher's logits.
        wants: scores wanted, of which only `reverse_kl` matters here.
        like_CV: buffer of the student's logits; the teacher's has its size, type and device.
        softness: divides the student's logits: the temperature over any factor that these still lack.
        compiled: compare whole chunks by compiled kernels.

    Raises:
        ValueError: the reference has another number of positions than there are targets, shares more ids than either
            has output rows, or exchanges ids that are not shared.
    """

    def __init__(
        self,
        reference: Reference | None,
        targets_N: Tensor,
        terms: Sequence[Divergence],
        temperature: float,
        wants: Set[ScoreName],
        like_CV: Tensor,
        *,
        softness: float,
        compiled: bool = False,
    ) -> None:
        scaling = UNSCALED if reference is None else reference.scaling
        self._settings = _Settings(tuple(terms), temperature, softness, scaling, "reverse_kl" in wants)
        self._targets_N = targets_N
        self._dtype = wide(like_CV.dtype)
        self._compiled = compiled
        self._layer: OutputLayer | None = None
        if reference is None:
            return
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
        """See `Comparison`."""
        if self._layer is None:
            zeros_C = logits_CV.new_zeros(len(logits_CV), dtype=self._dtype)
            reverse_kl_C = zeros_C.clone() if self._settings.wants_reverse_kl else None
            return ComparisonResult(zeros_C if self._settings.terms else None, reverse_kl_C)
        reference_CS = self._layer.logits(chunk, self._buffer_CS)
        if self._exchanged is not None:
            exchange_(reference_CS, *self._exchanged)
        inputs = (logits_CV, reference_CS, self._targets_N[chunk])
        if self._compiled and len(reference_CS) >= MIN_TOKENS:
            blocks = [compiled(_compare_)(*any_length(*inputs), self._settings)]
        else:
            num_rows = block_rows(reference_CS)
            parts = zip(*(tensor.split(num_rows) for tensor in inputs), strict=True)
            blocks = [
                _compare_(logits_RV, reference_RS, targets_R, self._settings)
                for logits_RV, reference_RS, targets_R in parts
            ]
        values, reverse_kls, logprobs = zip(*blocks, strict=True)
        return ComparisonResult(
            torch.cat(values) if self._settings.terms else None,
            torch.cat(reverse_kls) if self._settings.wants_reverse_kl else None,
            torch.cat(logprobs),
            reference_CS if self._settings.terms else None,
        )


def _compare_(
    logits_RV: Tensor, reference_RS: Tensor, targets_R: Tensor, settings: _Settings
) -> tuple[Tensor | None, Tensor | None, Tensor]:
    """Values of some rows; the gradient overwrites the teacher's logits."""
    shared = reference_RS.shape[1]
    log_p_RS = log_probabilities(logits_RV[:, :shared], UNSCALED, settings.softness)
    log_q_RS = log_probabilities(reference_RS, settings.scaling, settings.temperature)
    is_shared_R, ids_R = targets_R < shared, targets_R.clamp(max=shared - 1)
    logprobs_R = log_q_RS.gather(1, ids_R[:, None]).squeeze(1).where(is_shared_R, -torch.inf)
    pair = Pair(log_p_RS, log_q_RS)
    reverse_kl_R = pair.reverse_kl() if settings.wants_reverse_kl else None
    values_R = None
    if settings.terms:
        values_R, gradients_RS = divergences(pair, settings.terms)
        reference_RS.copy_(gradients_RS)
    return values_R, reverse_kl_R, logprobs_R


def exchange_(logits_CS: Tensor, first: int, second: int) -> None:
    """Has two ids change places."""
    first_C = logits_CS[:, first].clone()
    logits_CS[:, first] = logits_CS[:, second]
    logits_CS[:, second] = first_C


def log_probabilities(logits_RS: Tensor, scaling: LogitScaling, temperature: float) -> Tensor:
    """The log-softmax of scaled logits / temperature, in float32 or float64."""
    logits_RS = scaling.apply_(logits_RS.to(wide(logits_RS.dtype)))
    return (logits_RS if temperature == 1.0 else logits_RS / temperature).log_softmax(dim=-1)
