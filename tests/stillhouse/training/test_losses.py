"""Losses of one token by hand, against autograd, and as expectations over all tokens of one state, in float64."""

import math

import pytest
import torch
from torch import Tensor

from stillhouse.training.losses import (
    cross_entropy,
    importance_sampling,
    masked_ratios,
    ppo,
    reinforce,
    reverse_kl,
    reverse_kl_k3,
    truncated_ratios,
)

V = 5


def table(seed: int, rows: int = 1) -> Tensor:
    return torch.randn(rows, V, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def distributions() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A student's logits with gradient, and the log-probabilities of student, teacher and sampler, [V] each."""
    student = table(1)[0].requires_grad_()
    return student, student.log_softmax(-1), table(2)[0].log_softmax(-1), table(3)[0].log_softmax(-1)


def gradient(value: Tensor, of: Tensor) -> Tensor:
    (result,) = torch.autograd.grad(value, of, retain_graph=True)
    return result


def assert_same(seen: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(seen, expected, rtol=0, atol=1e-10)


def test_estimators_of_the_reverse_kl_have_the_gradients_they_are_said_to_have():
    student, p, q, _ = distributions()
    weights = p.detach().exp()
    exact, forward = (p.exp() * (p - q)).sum(), (q.exp() * (q - p)).sum()
    assert_same((weights * reverse_kl(p, q)).sum(), exact.detach())
    assert gradient((weights * (p - q)).sum(), student).abs().max() < 1e-12
    # k2 is biased and has the right gradient, as the policy gradient of k1 has, which is why it is no loss here.
    k2, k3 = (weights * (p - q).square() / 2).sum(), (weights * reverse_kl_k3(p, q)).sum()
    assert abs(k2.item() - exact.item()) > 0.01
    assert_same(gradient(k2, student), gradient(exact, student))
    assert_same(k3, exact)
    assert (reverse_kl_k3(p, q) >= 0).all()
    assert_same(gradient(k3, student), gradient(forward, student))


def test_importance_sampling_is_unbiased_whoever_sampled():
    student, p, _, sampler = distributions()
    advantages = table(4)[0]
    sampled = (sampler.exp() * importance_sampling(p, sampler, advantages)).sum()
    assert_same(gradient(sampled, student), -gradient((p.exp() * advantages).sum(), student))


def test_every_form_is_the_policy_gradient_where_the_student_itself_sampled():
    student, p, _, _ = distributions()
    advantages, sampler = table(4)[0], p.detach()
    forms = [
        reinforce(p, advantages),
        importance_sampling(p, sampler, advantages),
        ppo(p, sampler, advantages, clip_low=0.2, clip_high=0.2).losses_N,
    ]
    for losses in forms:
        expected = -gradient((p.exp() * advantages).sum(), student)
        assert_same(gradient((sampler.exp() * losses).sum(), student), expected)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.25, 2.0, -2.5, -2.5),
        (1.5, 2.0, -2.6, 0.0),  # raised enough: no gradient beyond 1.3
        (0.5, 2.0, -1.0, -1.0),  # lowered although good: still raised
        (0.85, -2.0, 1.7, 1.7),
        (0.5, -2.0, 1.6, 0.0),  # lowered enough: no gradient below 0.8
        (2.5, -2.0, 5.0, 5.0),  # raised although bad: lowered with its whole ratio
        (2.0, 0.0, 0.0, 0.0),
    ],
)
def test_ppo_has_no_gradient_beyond_its_bounds_on_the_side_where_it_has_gone_far_enough(
    ratio: float, advantage: float, loss: float, slope: float
):
    student = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    made = ppo(student, torch.zeros_like(student), student.new_tensor([advantage]), clip_low=0.2, clip_high=0.3)
    assert made.losses_N.item() == pytest.approx(loss)
    assert gradient(made.losses_N.sum(), student).item() == pytest.approx(slope)
    assert made.is_clipped_N.item() == (slope == 0.0 and advantage != 0.0)


def test_truncated_ratios_are_biased_by_no_more_than_what_was_cut_off():
    _, p, _, sampler = distributions()
    p = p.detach()
    values, ratios = table(5)[0], (p - sampler).exp()
    for largest in (0.5, 1.0, 2.0, float(ratios.max())):
        bias = (sampler.exp() * truncated_ratios(ratios, largest) * values).sum() - (p.exp() * values).sum()
        bound = values.abs().max() * (sampler.exp() * (ratios - largest).clamp(min=0.0)).sum()
        assert bias.abs() <= bound + 1e-12
    assert bias.abs() < 1e-12


def test_masked_ratios_leave_out_what_is_not_between_the_bounds():
    assert masked_ratios(torch.tensor([0.4, 0.5, 1.0, 2.0, 2.1]), 0.5, 2.0).tolist() == [0.0, 0.5, 1.0, 2.0, 0.0]


def test_cross_entropy_is_that_of_torch():
    logits = table(4, rows=13).requires_grad_()
    targets = torch.arange(len(logits)) % V
    losses = cross_entropy(logits.log_softmax(-1).gather(1, targets[:, None])[:, 0])
    expected = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    torch.testing.assert_close(losses, expected, rtol=0, atol=1e-10)
