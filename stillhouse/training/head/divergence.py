"""Exact divergences between student and teacher over a vocabulary, with their gradients in closed form.

With p = softmax(z) the student, q the teacher and r = log p - log q, each is an f-divergence,

    D = sum_v p_v f(r_v)      g_v = dD/dp_v = f(r_v) + f'(r_v)      dD/dz_v = p_v (g_v - sum_w p_w g_w)

so that what is added to all g alike changes nothing. With m = (1 - s) p + s q a mixture and a = log m - log p:

    reverse_kl           KL(p || q)                          f = r                               g = r
    forward_kl           KL(q || p)                          f = -e^(-r) r                       g = -e^(-r)
    jsd                  s KL(q || m) + (1 - s) KL(p || m)   f = -s e^(-r) (r + a) - (1 - s) a   g = -(1 - s) a
    skewed_forward_kl    KL(q || m)                          f = -e^(-r) (r + a)                 g = -(1 - s) e^(-r - a)
    skewed_reverse_kl    KL(p || m)                          f = -a                              g = -a - (1 - s) e^(-a)

`jsd` is that of Agarwal et al. (arXiv 2306.13649, section 2) with s = beta, the skewed KLs are those of Ko et al.
(DistiLLM, arXiv 2402.03898, section 3.1) with the skew as the share of the first distribution: s = skew and
s = 1 - skew. `jsd` is not scaled: near beta = 0 it is beta * forward_kl, near beta = 1 it is (1 - beta) * reverse_kl.

Dimensions: R rows, S shared ids, K the most probable of them.
"""

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor

from stillhouse.config import Divergence

_LEAST_LOG_RATIO: Final = -60.0
"""Of student over teacher in a mixture: below it the student's share is negligible, and exp would overflow at -88."""

_Form = tuple[Tensor, Tensor]
"""The divergence of each row, and p g of each of its ids."""


class Pair:
    """Student and teacher over the same ids.

    Args:
        log_p_RS: log-probabilities under the student; overwritten.
        log_q_RS: log-probabilities under the teacher; overwritten.
    """

    def __init__(self, log_p_RS: Tensor, log_q_RS: Tensor) -> None:
        self.r_RS = log_p_RS - log_q_RS
        self.p_RS = _probabilities(log_p_RS)
        self._log_q_RS = log_q_RS
        self._q_RS: Tensor | None = None

    @property
    def q_RS(self) -> Tensor:
        """Probabilities under the teacher, computed when they are first used."""
        if self._q_RS is None:
            self._q_RS = _probabilities(self._log_q_RS)
        return self._q_RS

    def reverse_kl(self) -> Tensor:
        """KL(student || teacher) of each row."""
        return (self.p_RS * self.r_RS).sum(dim=-1)


def _probabilities(logprobs_RS: Tensor) -> Tensor:
    """Their exponentials, which overwrite them unless the caller is being compiled."""
    if torch.compiler.is_compiling():
        return logprobs_RS.exp()
    # On a CPU the fused softmax costs two thirds of exp.
    return torch.softmax(logprobs_RS, dim=-1, out=logprobs_RS)


def divergences(pair: Pair, terms: Sequence[Divergence]) -> tuple[Tensor, Tensor]:
    """The weighted sum of at least one term, [R], and its gradient by the student's logits, [R, S]."""
    values_R, gradients_RS = pair.p_RS.new_zeros(len(pair.p_RS)), None
    for term in (term for term in terms if term.top_k is None):
        term_values_R, slopes_RS = _FORMS[term.kind](pair, term)
        values_R += term.weight * term_values_R
        if gradients_RS is not None:
            gradients_RS.add_(slopes_RS, alpha=term.weight)
        else:
            gradients_RS = slopes_RS if term.weight == 1.0 else slopes_RS.mul_(term.weight)
    if gradients_RS is None:
        gradients_RS = torch.zeros_like(pair.p_RS)
    else:
        gradients_RS.addcmul_(pair.p_RS, -gradients_RS.sum(dim=-1, keepdim=True))
    for term in terms:
        if term.top_k is not None:
            values_R += _add_top_k_(gradients_RS, pair, term, term.top_k)
    return values_R, gradients_RS


def _reverse_kl(pair: Pair, _: Divergence) -> _Form:
    slopes_RS = pair.p_RS * pair.r_RS
    return slopes_RS.sum(dim=-1), slopes_RS


def _forward_kl(pair: Pair, _: Divergence) -> _Form:
    return -(pair.q_RS * pair.r_RS).sum(dim=-1), -pair.q_RS


def _jsd(pair: Pair, term: Divergence) -> _Form:
    r_RS, a_RS = _mixture(pair, term.beta)
    of_teacher_R = (r_RS.add_(a_RS)).mul_(pair.q_RS).sum(dim=-1)
    slopes_RS = a_RS.mul_(pair.p_RS).mul_(term.beta - 1.0)
    return slopes_RS.sum(dim=-1) - term.beta * of_teacher_R, slopes_RS


def _skewed_forward_kl(pair: Pair, term: Divergence) -> _Form:
    r_RS, a_RS = _mixture(pair, term.skew)
    # q e^(-a), not p e^(-r - a): a is never far below 0.
    slopes_RS = torch.exp(-a_RS).mul_(pair.q_RS).mul_(term.skew - 1.0)
    return -r_RS.add_(a_RS).mul_(pair.q_RS).sum(dim=-1), slopes_RS


def _skewed_reverse_kl(pair: Pair, term: Divergence) -> _Form:
    _, a_RS = _mixture(pair, 1.0 - term.skew)
    integrands_RS = -a_RS * pair.p_RS
    return integrands_RS.sum(dim=-1), integrands_RS.sub_(a_RS.neg_().exp_().mul_(pair.p_RS), alpha=term.skew)


_FORMS: Final[dict[str, Callable[[Pair, Divergence], _Form]]] = {
    "reverse_kl": _reverse_kl,
    "forward_kl": _forward_kl,
    "jsd": _jsd,
    "skewed_forward_kl": _skewed_forward_kl,
    "skewed_reverse_kl": _skewed_reverse_kl,
}


def _mixture(pair: Pair, share: float) -> tuple[Tensor, Tensor]:
    """r, bounded so that nothing overflows, and a = log(1 - s + s e^(-r)), which is exactly 0 where both agree."""
    r_RS = pair.r_RS.clamp(min=_LEAST_LOG_RATIO)
    return r_RS, torch.neg(r_RS).expm1_().mul_(share).log1p_()


def _add_top_k_(gradients_RS: Tensor, pair: Pair, term: Divergence, most: int) -> Tensor:
    """Values of a KL over the most probable ids, [R], whose gradient is added.

    Compares distributions over K + 1 tokens, the last of which stands for all others; its g is that of each of them.
    Without the tail g = 0 for the others.
    """
    ranking_RS = pair.q_RS if term.top_k_of == "teacher" else pair.p_RS
    ids_RK = ranking_RS.topk(min(most, ranking_RS.shape[1]), dim=-1).indices
    p_RK, q_RK, r_RK = (probabilities_RS.gather(1, ids_RK) for probabilities_RS in (pair.p_RS, pair.q_RS, pair.r_RS))
    values_R, slopes_RK = _plain_kl(term, p_RK, q_RK, r_RK)
    mean_R1, tail_slope_R1 = slopes_RK.sum(dim=-1, keepdim=True), torch.zeros_like(p_RK[:, :1])
    if term.tail:
        p_R1, q_R1 = (_mass_outside(probabilities_RS, ids_RK) for probabilities_RS in (pair.p_RS, pair.q_RS))
        tail_R, weighted_R1 = _plain_kl(term, p_R1, q_R1, p_R1.log() - q_R1.log())
        values_R, mean_R1, tail_slope_R1 = values_R + tail_R, mean_R1 + weighted_R1, weighted_R1 / p_R1
    inside_RK = gradients_RS.gather(1, ids_RK).add_(slopes_RK - p_RK * mean_R1, alpha=term.weight)
    gradients_RS.addcmul_(pair.p_RS, tail_slope_R1 - mean_R1, value=term.weight)
    # Written, not added: with little mass outside, the slope of the tail is large beside what is wanted inside.
    gradients_RS.scatter_(1, ids_RK, inside_RK)
    return term.weight * values_R


def _plain_kl(term: Divergence, p: Tensor, q: Tensor, r: Tensor) -> _Form:
    """As the forms above, with the constant in g, which counts where p does not sum to 1."""
    if term.kind == "reverse_kl":
        return (p * r).sum(dim=-1), p * r + p
    return -(q * r).sum(dim=-1), -q


def _mass_outside(probabilities_RS: Tensor, ids_RK: Tensor) -> Tensor:
    """Probability of all other ids, [R, 1], at least the smallest positive one.

    A sum, and not 1 less the probability inside, of which rounding would leave no digit.
    """
    outside_R1 = probabilities_RS.scatter(1, ids_RK, 0.0).sum(dim=-1, keepdim=True)
    return outside_R1.clamp_min_(torch.finfo(outside_R1.dtype).tiny)
