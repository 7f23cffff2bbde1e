"""Divergences between student and teacher over a vocabulary, and their gradients by the student's logits.

Of a model in this process the whole distribution is known, of a server its most probable tokens and the mass of all
others. `forms` has the formulas, `top_k` the comparison of k tokens and the rest.

Dimensions: R rows, S shared ids, K the teacher's most probable ones.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from stillhouse.config import Divergence
from stillhouse.training.head.forms import FORMS, Pair
from stillhouse.training.head.top_k import TeacherTop, add_top_k_, best_of, merged


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
    them. The gradient leaves the student's proportions among the others as they are.

    Args:
        log_p_RS: log-probabilities under the student.
        teacher: the same rows.
        terms: at least one. A term's `top_k` is the number of ids it takes of the K; those of a term without one are K.
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
