"""Divergences between student and teacher over a vocabulary, and their gradients by the student's logits.

Of a model in this process the whole distribution is known, of a server its most probable tokens and the mass of all
others. `forms` has the formulas. A divergence over k ids has all others as one more token: without it a sum over k ids
is no divergence, as it falls below zero wherever the student has more mass on them than the teacher (verl#7855,
verl#7856).

Dimensions: R rows, S shared ids, X = S + 1, K the chosen ones.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from stillhouse.config import Divergence
from stillhouse.training.head.forms import FORMS, Form, Pair, Part


class TeacherTop(NamedTuple):
    """The target of each row and the teacher's most probable ids, best first, with probabilities that sum to 1."""

    ids_RK: Tensor
    """S, without mass, for a target among the best, and for an id that the student does not have."""
    logprobs_RK: Tensor
    log_tail_R1: Tensor
    """Logarithm of the mass of all other ids, above minus infinity."""

    def best(self, most: int | None) -> "TeacherTop":
        """Return the target and the `most` best ids, or all for None."""
        if most is None or most >= self.ids_RK.shape[1] - 1:
            return self
        count = most + 1
        log_tail_R1 = torch.cat([self.logprobs_RK[:, count:], self.log_tail_R1], dim=1).logsumexp(1, keepdim=True)
        return TeacherTop(self.ids_RK[:, :count], self.logprobs_RK[:, :count], log_tail_R1)


class ComparedIds(NamedTuple):
    """K ids of each row under student and teacher, and all others as one."""

    ids_RK: Tensor
    inside: Part
    """The ids, [R, K] each."""
    tail: Part
    """All others, [R, 1] each."""


def divergences(pair: Pair, terms: Sequence[Divergence]) -> tuple[Tensor, Tensor]:
    """Return the weighted sum of at least one term, [R], and its gradient by the student's logits, [R, S]."""
    values_R, gradients_RS = pair.p_RS.new_zeros(len(pair.p_RS)), None
    for term in (term for term in terms if term.top_k is None):
        term_values_R, slopes_RS = FORMS[term.kind](pair, term)
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
            values_R += add_top_k_(gradients_RS, pair.p_RS, best_of(pair, term, term.top_k), term)
    return values_R, gradients_RS


def top_divergences(log_p_RS: Tensor, teacher: TeacherTop, terms: Sequence[Divergence]) -> tuple[Tensor, Tensor]:
    """Return what `divergences` does, where of the teacher only K ids are known, the target and the best.

    Student and teacher are compared as distributions over K + 1 tokens, the last of which stands for all others.
    Merging tokens never increases an f-divergence: each value is a lower bound of that over the vocabulary, and 0 only
    where all K + 1 probabilities agree. What a reverse KL lacks is the student's mass of the others times the KL among
    them. The gradient leaves the student's proportions among the others as they are. A term takes `top_k` of the K ids,
    or all without one.
    """
    size = log_p_RS.shape[1]
    # What is gathered and scattered for ids that the student does not have is in one more column.
    p_RX = log_p_RS.new_zeros((len(log_p_RS), size + 1))
    p_RX[:, :size] = log_p_RS.exp()
    values_R, gradients_RX = p_RX.new_zeros(len(p_RX)), torch.zeros_like(p_RX)
    for term in terms:
        compared = merged(log_p_RS, p_RX, teacher.best(term.top_k))
        values_R += add_top_k_(gradients_RX, p_RX, compared, term)
    return values_R, gradients_RX[:, :size]


def best_of(pair: Pair, term: Divergence, most: int) -> ComparedIds:
    """Return the `most` best ids of teacher or student, of whole distributions."""
    ranking_RS = pair.q_RS if term.top_k_of == "teacher" else pair.p_RS
    ids_RK = ranking_RS.topk(min(most, ranking_RS.shape[1]), dim=-1).indices
    inside = Part(*(probabilities_RS.gather(1, ids_RK) for probabilities_RS in (pair.p_RS, pair.q_RS, pair.r_RS)))
    p_R1, q_R1 = (_mass_outside(probabilities_RS, ids_RK) for probabilities_RS in (pair.p_RS, pair.q_RS))
    return ComparedIds(ids_RK, inside, Part(p_R1, q_R1, p_R1.log() - q_R1.log()))


def merged(log_p_RS: Tensor, p_RX: Tensor, teacher: TeacherTop) -> ComparedIds:
    """Return the teacher's best ids and all others; `p_RX` are the student's probabilities, and a column of zeros."""
    size = log_p_RS.shape[1]
    log_p_RK = log_p_RS.gather(1, teacher.ids_RK.clamp(max=size - 1))
    r_RK = torch.where(teacher.ids_RK < size, log_p_RK - teacher.logprobs_RK, 0.0)
    p_R1 = _mass_outside(p_RX, teacher.ids_RK)
    inside = Part(p_RX.gather(1, teacher.ids_RK), teacher.logprobs_RK.exp(), r_RK)
    tail = Part(p_R1, teacher.log_tail_R1.exp(), p_R1.log() - teacher.log_tail_R1)
    return ComparedIds(teacher.ids_RK, inside, tail)


def add_top_k_(gradients_RS: Tensor, p_RS: Tensor, compared: ComparedIds, term: Divergence) -> Tensor:
    """Add the gradient of the term and return its values, [R]; each of the other ids has their common g, or 0."""
    values_R, slopes_RK = _form(term, compared.inside)
    p_RK, ids_RK = compared.inside.p_RS, compared.ids_RK
    tail_R, weighted_R1 = _form(term, compared.tail)
    values_R, mean_R1 = values_R + tail_R, slopes_RK.sum(dim=-1, keepdim=True) + weighted_R1
    tail_slope_R1 = weighted_R1 / compared.tail.p_RS
    inside_RK = gradients_RS.gather(1, ids_RK).add_(slopes_RK - p_RK * mean_R1, alpha=term.weight)
    gradients_RS.addcmul_(p_RS, tail_slope_R1 - mean_R1, value=term.weight)
    # Written, not added: with little mass outside, the slope of the others is large beside what is wanted inside.
    gradients_RS.scatter_(1, ids_RK, inside_RK)
    return term.weight * values_R


def _form(term: Divergence, part: Part) -> Form:
    """Compute as `FORMS` do; of a plain KL with the constant in g, which counts where the others are left out."""
    match term.kind:
        case "reverse_kl":
            slopes = part.p_RS * part.r_RS
            return slopes.sum(dim=-1), slopes + part.p_RS
        case "forward_kl":
            return -(part.q_RS * part.r_RS).sum(dim=-1), -part.q_RS
        case kind:
            return FORMS[kind](part, term)


def _mass_outside(probabilities_RS: Tensor, ids_RK: Tensor) -> Tensor:
    """Return the probability of all other ids, [R, 1], at least the smallest positive one.

    A sum, and not 1 less the probability inside, of which rounding would leave no digit.
    """
    outside_R1 = probabilities_RS.scatter(1, ids_RK, 0.0).sum(dim=-1, keepdim=True)
    return outside_R1.clamp_min_(torch.finfo(outside_R1.dtype).tiny)
