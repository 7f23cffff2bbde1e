"""Divergences between student and teacher and their slopes, in closed form.

With p = softmax(z) the student, q the teacher and r = log p - log q, each is an f-divergence,

    D = sum_v p_v f(r_v)      g_v = dD/dp_v = f(r_v) + f'(r_v)      dD/dz_v = p_v (g_v - sum_w p_w g_w)

so that what is added to all g alike changes nothing. With m = (1 - s) p + s q a mixture and a = log m - log p:

    reverse_kl           KL(p || q)                          f = r                               g = r
    forward_kl           KL(q || p)                          f = -e^(-r) r                       g = -e^(-r)
    jsd                  s KL(q || m) + (1 - s) KL(p || m)   f = -s e^(-r) (r + a) - (1 - s) a   g = -(1 - s) a
    skewed_forward_kl    KL(q || m)                          f = -e^(-r) (r + a)                 g = -(1 - s) e^(-r - a)
    skewed_reverse_kl    KL(p || m)                          f = -a                              g = -a - (1 - s) e^(-a)

`jsd` follows Agarwal et al. (arXiv 2306.13649, section 2) with s = beta, the skewed KLs follow Ko et al.
(DistiLLM, arXiv 2402.03898, section 3.1) with the skew as the share of the first distribution: s = skew and
s = 1 - skew. `jsd` is not scaled: near beta = 0 it is beta * forward_kl, near beta = 1 it is (1 - beta) * reverse_kl.

Dimensions: R rows, S ids.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import torch
from torch import Tensor

from stillhouse.config import Divergence

_LEAST_LOG_RATIO: Final = -60.0
"""Of student over teacher in a mixture: below it the student's share is negligible, and exp would overflow at -88."""

Form = tuple[Tensor, Tensor]
"""The divergence of each row, and p g of each of its ids."""


class Part(NamedTuple):
    """Some ids of each row: their probabilities p under the student and q under the teacher, and r."""

    p_RS: Tensor
    q_RS: Tensor
    r_RS: Tensor


class Pair:
    """Student and teacher over the same ids; their log-probabilities are overwritten."""

    def __init__(self, log_p_RS: Tensor, log_q_RS: Tensor) -> None:
        self.r_RS = log_p_RS - log_q_RS
        self.p_RS = probabilities(log_p_RS)
        self._log_q_RS = log_q_RS
        self._q_RS: Tensor | None = None

    @property
    def q_RS(self) -> Tensor:
        """Return probabilities under the teacher, computed when they are first used."""
        if self._q_RS is None:
            self._q_RS = probabilities(self._log_q_RS)
        return self._q_RS


Compared = Pair | Part


def probabilities(logprobs_RS: Tensor) -> Tensor:
    """Return their exponentials, which overwrite them unless the caller is being compiled."""
    if torch.compiler.is_compiling():
        return logprobs_RS.exp()
    # On a CPU the fused softmax costs two thirds of exp.
    return torch.softmax(logprobs_RS, dim=-1, out=logprobs_RS)


def _reverse_kl(pair: Compared, _: Divergence) -> Form:
    slopes_RS = pair.p_RS * pair.r_RS
    return slopes_RS.sum(dim=-1), slopes_RS


def _forward_kl(pair: Compared, _: Divergence) -> Form:
    return -(pair.q_RS * pair.r_RS).sum(dim=-1), -pair.q_RS


def _jsd(pair: Compared, term: Divergence) -> Form:
    r_RS, a_RS = _mixture(pair, term.beta)
    of_teacher_R = (r_RS.add_(a_RS)).mul_(pair.q_RS).sum(dim=-1)
    slopes_RS = a_RS.mul_(pair.p_RS).mul_(term.beta - 1.0)
    return slopes_RS.sum(dim=-1) - term.beta * of_teacher_R, slopes_RS


def _skewed_forward_kl(pair: Compared, term: Divergence) -> Form:
    r_RS, a_RS = _mixture(pair, term.skew)
    # q e^(-a), not p e^(-r - a): a is never far below 0.
    slopes_RS = torch.exp(-a_RS).mul_(pair.q_RS).mul_(term.skew - 1.0)
    return -r_RS.add_(a_RS).mul_(pair.q_RS).sum(dim=-1), slopes_RS


def _skewed_reverse_kl(pair: Compared, term: Divergence) -> Form:
    _, a_RS = _mixture(pair, 1.0 - term.skew)
    integrands_RS = -a_RS * pair.p_RS
    return integrands_RS.sum(dim=-1), integrands_RS.sub_(a_RS.neg_().exp_().mul_(pair.p_RS), alpha=term.skew)


FORMS: Final[dict[str, Callable[[Compared, Divergence], Form]]] = {
    "reverse_kl": _reverse_kl,
    "forward_kl": _forward_kl,
    "jsd": _jsd,
    "skewed_forward_kl": _skewed_forward_kl,
    "skewed_reverse_kl": _skewed_reverse_kl,
}


def _mixture(pair: Compared, share: float) -> tuple[Tensor, Tensor]:
    """Return r, bounded against overflow, and a = log(1 - s + s e^(-r)), which is exactly 0 where both agree."""
    r_RS = pair.r_RS.clamp(min=_LEAST_LOG_RATIO)
    return r_RS, torch.neg(r_RS).expm1_().mul_(share).log1p_()
