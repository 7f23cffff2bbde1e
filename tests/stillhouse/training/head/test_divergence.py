"""The closed forms of the divergences against autograd, and what must hold of them, in float64."""

import math
from collections.abc import Callable
from itertools import pairwise, product

import pytest
import torch
from torch import Tensor

from stillhouse.config import Divergence
from stillhouse.training.head.divergence import TeacherTop, divergences, top_divergences
from stillhouse.training.head.forms import Pair

R, S = 6, 40

WHOLE = [
    Divergence(kind="reverse_kl"),
    Divergence(kind="forward_kl"),
    Divergence(kind="jsd"),
    Divergence(kind="jsd", beta=0.1),
    Divergence(kind="skewed_reverse_kl", skew=0.3),
    Divergence(kind="skewed_forward_kl"),
]
TOP_K = [
    Divergence(kind=kind, top_k=k, top_k_of=of)
    for kind, k, of in product(("reverse_kl", "forward_kl"), (1, 7, S), ("teacher", "student"))
]


def name(term: Divergence) -> str:
    return f"{term.kind}-{term.top_k}-{term.top_k_of}" if term.top_k else term.kind


@pytest.fixture
def logits() -> tuple[Tensor, Tensor]:
    """Of student and teacher."""
    student, teacher = 2 * torch.randn(2, R, S, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return student.requires_grad_(), teacher


def ours(student: Tensor, teacher: Tensor, *terms: Divergence) -> tuple[Tensor, Tensor]:
    return divergences(Pair(student.detach().log_softmax(-1), teacher.log_softmax(-1)), terms)


def naive(student: Tensor, teacher: Tensor, term: Divergence) -> Tensor:
    p, q = student.softmax(-1), teacher.softmax(-1)
    if term.top_k is not None:
        ids = (q if term.top_k_of == "teacher" else p).topk(term.top_k).indices
        p, q = (with_tail(whole, ids) if term.top_k < S else whole.gather(1, ids) for whole in (p, q))
    by_kind: dict[str, Callable[[], Tensor]] = {
        "reverse_kl": lambda: kl(p, q),
        "forward_kl": lambda: kl(q, p),
        "jsd": lambda: term.beta * kl(q, mixture(term.beta, q, p)) + (1 - term.beta) * kl(p, mixture(term.beta, q, p)),
        "skewed_reverse_kl": lambda: kl(p, mixture(term.skew, p, q)),
        "skewed_forward_kl": lambda: kl(q, mixture(term.skew, q, p)),
    }
    return by_kind[term.kind]()


def kl(one: Tensor, other: Tensor) -> Tensor:
    return (one * (one / other).log()).sum(-1)


def mixture(share: float, one: Tensor, other: Tensor) -> Tensor:
    return share * one + (1 - share) * other


def with_tail(whole: Tensor, ids: Tensor) -> Tensor:
    inside = whole.gather(1, ids)
    return torch.cat([inside, 1 - inside.sum(-1, keepdim=True)], dim=1)


def assert_close(seen: Tensor, expected: Tensor, atol: float = 1e-10) -> None:
    torch.testing.assert_close(seen, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("term", WHOLE + TOP_K, ids=name)
def test_closed_form_is_what_autograd_finds(logits: tuple[Tensor, Tensor], term: Divergence):
    values, gradients = ours(*logits, term)
    expected = naive(*logits, term)
    assert_close(values, expected.detach())
    assert_close(gradients, torch.autograd.grad(expected.sum(), logits[0])[0])


@pytest.mark.parametrize("term", WHOLE + TOP_K, ids=name)
def test_nothing_is_to_be_learnt_from_oneself(logits: tuple[Tensor, Tensor], term: Divergence):
    student, _ = logits
    values, gradients = ours(student, student.detach(), term)
    assert_close(values, torch.zeros(R, dtype=torch.float64), atol=1e-15)
    assert_close(gradients, torch.zeros(R, S, dtype=torch.float64), atol=1e-15)


def test_mixture_of_terms_is_their_weighted_sum(logits: tuple[Tensor, Tensor]):
    terms = [term.model_copy(update={"weight": 0.3 + place}) for place, term in enumerate([*WHOLE, *TOP_K[:6]])]
    values, gradients = ours(*logits, *terms)
    expected = torch.stack([term.weight * naive(*logits, term) for term in terms]).sum(0)
    assert_close(values, expected.detach())
    assert_close(gradients, torch.autograd.grad(expected.sum(), logits[0])[0])


def test_forward_kl_from_a_teacher_certain_of_a_token_is_its_cross_entropy(logits: tuple[Tensor, Tensor]):
    student, _ = logits
    targets = torch.arange(R)
    certain = torch.full((R, S), -1e9, dtype=torch.float64).scatter(1, targets[:, None], 0.0)
    values, gradients = ours(student, certain, Divergence(kind="forward_kl"))
    expected = torch.nn.functional.cross_entropy(student, targets, reduction="none")
    assert_close(values, expected.detach())
    assert_close(gradients, torch.autograd.grad(expected.sum(), student)[0])


def test_jsd_is_symmetric_at_a_half_and_at_most_log_two(logits: tuple[Tensor, Tensor]):
    student, teacher = logits
    half = Divergence(kind="jsd")
    assert_close(ours(student, teacher, half)[0], ours(teacher, student.detach(), half)[0])
    apart = torch.tensor([[400.0, 0.0], [0.0, 400.0]])
    (values, gradients) = ours(apart, apart.flip(0), half)
    torch.testing.assert_close(values, torch.full((2,), math.log(2)))
    assert gradients.isfinite().all()


@pytest.mark.parametrize("term", WHOLE + TOP_K, ids=name)
def test_logits_far_apart_stay_finite_and_exact_in_float32(term: Divergence):
    student, teacher = 100 * torch.randn(2, R, S, generator=torch.Generator().manual_seed(1))
    assert all(found.isfinite().all() for found in ours(student, teacher, term))
    if term.top_k is not None:  # a tail below 1e-38 is counted as that
        student, teacher = student / 5, teacher / 5
    values, gradients = ours(student, teacher, term)
    exact_values, exact_gradients = ours(student.double(), teacher.double(), term)
    torch.testing.assert_close(values.double(), exact_values, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(gradients.double(), exact_gradients, rtol=1e-3, atol=1e-3)


MERGED = [*WHOLE, Divergence(kind="reverse_kl", top_k=3), Divergence(kind="jsd", top_k=2)]


def top_of(teacher: Tensor, k: int) -> TeacherTop:
    """A teacher's k best, of which one is the target, and the mass of the others."""
    logprobs = teacher.log_softmax(-1)
    best = logprobs.topk(k)
    others = logprobs.scatter(1, best.indices, -torch.inf).logsumexp(1, keepdim=True)
    ids = torch.cat([torch.full((len(teacher), 1), S), best.indices], dim=1)
    values = torch.cat([torch.full((len(teacher), 1), -torch.inf, dtype=teacher.dtype), best.values], dim=1)
    return TeacherTop(ids, values, others.clamp(min=-700))


def naive_merged(student: Tensor, teacher: Tensor, term: Divergence, k: int) -> Tensor:
    """By the definition, over the teacher's k best and the others as one."""
    ids = teacher.topk(min(k, term.top_k or k)).indices
    sides = [with_tail(logits.softmax(-1), ids).log() for logits in (student, teacher)]
    return naive(*sides, term.model_copy(update={"top_k": None}))


@pytest.mark.parametrize("term", MERGED, ids=name)
@pytest.mark.parametrize("k", [1, 7, 30])
def test_divergence_from_a_teachers_best_tokens_is_what_autograd_finds(
    logits: tuple[Tensor, Tensor], term: Divergence, k: int
):
    student, teacher = logits
    values, gradients = top_divergences(student.detach().log_softmax(-1), top_of(teacher, k), [term])
    expected = naive_merged(student, teacher, term, k)
    assert_close(values, expected.detach())
    assert_close(gradients, torch.autograd.grad(expected.sum(), student)[0])


@pytest.mark.parametrize("term", WHOLE, ids=name)
def test_best_tokens_bound_the_whole_divergence_and_all_but_one_of_them_give_it(
    logits: tuple[Tensor, Tensor], term: Divergence
):
    student, teacher = logits
    (whole, slopes) = ours(student, teacher, term)
    found = [top_divergences(student.detach().log_softmax(-1), top_of(teacher, k), [term]) for k in (1, 5, 20, S - 1)]
    values = [bound for bound, _ in found]
    assert (values[0] >= 0).all()
    assert all((larger >= smaller - 1e-12).all() for smaller, larger in pairwise(values))
    assert_close(values[-1], whole)
    assert_close(found[-1][1], slopes)


@pytest.mark.parametrize("term", WHOLE, ids=name)
def test_best_tokens_far_from_the_students_stay_finite_and_exact_in_float32(term: Divergence):
    student, teacher = 20 * torch.randn(2, R, S, generator=torch.Generator().manual_seed(1))
    single = top_divergences(student.log_softmax(-1), top_of(teacher, 4), [term])
    exact = top_divergences(student.double().log_softmax(-1), TeacherTop(*_doubled(top_of(teacher, 4))), [term])
    for seen, expected, tolerance in zip(single, exact, (1e-4, 1e-3), strict=True):
        torch.testing.assert_close(seen.double(), expected, rtol=tolerance, atol=tolerance)


def _doubled(top: TeacherTop) -> tuple[Tensor, Tensor, Tensor]:
    return top.ids_RK, top.logprobs_RK.double(), top.log_tail_R1.double()
