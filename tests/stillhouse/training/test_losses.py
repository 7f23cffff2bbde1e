"""Losses against autograd and a tabular autoregressive model whose 27 sequences are enumerated, in float64.

The model has V = 3 tokens and T = 3 positions; each prefix (1 + 3 + 9 of them) is a state with logits of its own.
"""

import itertools

import pytest
import torch
from torch import Tensor

from stillhouse.training.losses import cross_entropy, dft, importance_sampling, reverse_kl, z_loss
from stillhouse.training.on_policy.advantages import distillation_advantages

V, T = 3, 3
STATES = {prefix: i for i, prefix in enumerate(p for t in range(T) for p in itertools.product(range(V), repeat=t))}
SEQUENCES = list(itertools.product(range(V), repeat=T))


def table(seed: int) -> Tensor:
    return torch.randn(len(STATES), V, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def token_logprobs(logits: Tensor) -> Tensor:
    """Log-probability of each token of each sequence, [27, 3]."""
    logprobs = logits.log_softmax(-1)
    return torch.stack([torch.stack([logprobs[STATES[s[:t]], s[t]] for t in range(T)]) for s in SEQUENCES])


def expected_gradient(
    student: Tensor, teacher: Tensor, sampler: Tensor, *, advantage_logprobs: str = "student"
) -> Tensor:
    """Gradient of E_sampler[sum of token losses], every sequence weighted by its exact probability."""
    student = student.clone().requires_grad_()
    student_lp, teacher_lp, sampler_lp = map(token_logprobs, (student, teacher, sampler))
    seen = student_lp if advantage_logprobs == "student" else sampler_lp
    advantages = distillation_advantages(seen, teacher_lp, 1.0, None)
    losses = importance_sampling(student_lp, sampler_lp, advantages)
    weights = sampler_lp.sum(-1).exp()
    (weights[:, None] * losses).sum().backward()
    assert student.grad is not None
    return student.grad


def state_weights(logits: Tensor) -> Tensor:
    """Probability of reaching each state."""
    logprobs = logits.log_softmax(-1)
    return torch.stack(
        [sum((logprobs[STATES[p[:t]], p[t]] for t in range(len(p))), torch.zeros(())).exp() for p in STATES]
    )


def state_kls(student: Tensor, teacher: Tensor) -> Tensor:
    p, q = student.log_softmax(-1), teacher.log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1)


def kl_gradient(student: Tensor, teacher: Tensor, visits: Tensor) -> Tensor:
    """Gradient of sum over states of visits * KL(student || teacher), visits held fixed."""
    student = student.clone().requires_grad_()
    (visits.detach() * state_kls(student, teacher)).sum().backward()
    assert student.grad is not None
    return student.grad


def test_expected_importance_sampling_gradient_is_that_of_the_token_kl():
    student, teacher = table(1), table(2)
    torch.testing.assert_close(
        expected_gradient(student, teacher, student),
        kl_gradient(student, teacher, state_weights(student)),
        rtol=0,
        atol=1e-10,
    )


def test_mean_reverse_kl_of_samples_is_the_sequence_kl():
    student, teacher = table(1), table(2)
    student_lp, teacher_lp = token_logprobs(student), token_logprobs(teacher)
    sampled = (student_lp.sum(-1).exp()[:, None] * reverse_kl(student_lp, teacher_lp)).sum()
    exact = (state_weights(student) * state_kls(student, teacher)).sum()
    torch.testing.assert_close(sampled, exact, rtol=0, atol=1e-10)


def test_baseline_that_does_not_see_the_token_leaves_the_expected_gradient():
    student, teacher = table(1).requires_grad_(), table(2)
    student_lp, teacher_lp = token_logprobs(student), token_logprobs(teacher)
    kls = state_kls(student, teacher).detach()
    baseline = torch.stack([torch.stack([kls[STATES[s[:t]]] for t in range(T)]) for s in SEQUENCES])
    advantages = distillation_advantages(student_lp, teacher_lp, 1.0, None) + baseline
    losses = importance_sampling(student_lp, student_lp.detach(), advantages)
    (student_lp.sum(-1).exp().detach()[:, None] * losses).sum().backward()
    torch.testing.assert_close(
        student.grad, expected_gradient(student.detach(), teacher, student.detach()), rtol=0, atol=1e-10
    )


def test_samples_of_another_policy_are_unbiased_under_the_current_advantage():
    student, teacher = torch.randn(V, dtype=torch.float64), torch.randn(V, dtype=torch.float64)
    sampler = torch.randn(V, dtype=torch.float64)
    student.requires_grad_()
    student_lp, teacher_lp, sampler_lp = (x.log_softmax(-1) for x in (student, teacher, sampler))
    losses = importance_sampling(student_lp, sampler_lp, distillation_advantages(student_lp, teacher_lp, 1.0, None))
    (gradient,) = torch.autograd.grad((sampler_lp.exp() * losses).sum(), student)
    lp = student.log_softmax(-1)
    (exact,) = torch.autograd.grad((lp.exp() * (lp - teacher_lp)).sum(), student)
    torch.testing.assert_close(gradient, exact, rtol=0, atol=1e-10)


def test_advantage_of_the_sampler_would_reward_drifting_from_it():
    # grad [KL(student || teacher) - KL(student || sampler)] instead of grad KL(student || teacher)
    student, teacher, sampler = table(1), table(2), table(3)
    visits = state_weights(sampler)
    biased = expected_gradient(student, teacher, sampler, advantage_logprobs="sampler")
    drifting = kl_gradient(student, teacher, visits) - kl_gradient(student, sampler, visits)
    # ratio weights tokens, states are visited as the sampler does
    torch.testing.assert_close(biased, drifting, rtol=0, atol=1e-10)
    unbiased = expected_gradient(student, teacher, sampler)
    torch.testing.assert_close(unbiased, kl_gradient(student, teacher, visits), rtol=0, atol=1e-10)
    assert (biased - unbiased).abs().max() > 0.01


def test_teacher_equal_to_student_gives_no_gradient():
    assert expected_gradient(table(1), table(1), table(1)).abs().max() == 0.0


def test_minimising_sampled_reverse_kl_directly_would_have_no_expected_gradient():
    student, teacher = table(1).requires_grad_(), table(2)
    student_lp = token_logprobs(student)
    (student_lp.sum(-1).exp().detach()[:, None] * (student_lp - token_logprobs(teacher))).sum().backward()
    assert student.grad is not None
    assert student.grad.abs().max() < 1e-10


def test_importance_sampling_by_hand():
    losses = importance_sampling(torch.tensor([-1.0, -2.0]), torch.tensor([-1.0, -1.0]), torch.tensor([0.5, -2.0]))
    torch.testing.assert_close(losses, torch.tensor([-0.5, 2.0 * 0.36787944]))


def test_gradient_raises_tokens_the_teacher_likes_more():
    student_lp = torch.tensor([-1.0, -1.0], requires_grad=True)
    advantages = distillation_advantages(student_lp, torch.tensor([-0.5, -3.0]), 1.0, None)
    importance_sampling(student_lp, student_lp.detach(), advantages).sum().backward()
    assert student_lp.grad is not None
    # gradient descent raises the first log-probability and lowers the second
    assert student_lp.grad.tolist() == pytest.approx([-0.5, 2.0])


def test_advantages_are_scaled_then_clipped_and_carry_no_gradient():
    student_lp = torch.tensor([-1.0, -1.0, -9.0], requires_grad=True)
    advantages = distillation_advantages(student_lp, torch.tensor([-2.0, -9.0, -1.0]), 0.5, 3.0)
    assert advantages.tolist() == [-0.5, -3.0, 3.0]
    assert not advantages.requires_grad


def test_cross_entropy_is_forward_kl_from_a_certain_teacher():
    logits = table(4)[:1].requires_grad_()
    logprobs = logits.log_softmax(-1)
    (ours,) = torch.autograd.grad(cross_entropy(logprobs[0, 1]), logits)
    certain = torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(ours, logits.softmax(-1) - certain, rtol=0, atol=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_smoothed_cross_entropy_is_that_of_torch_and_forward_kl_from_a_smoothed_teacher(smoothing: float):
    logits = table(4).requires_grad_()
    targets = torch.arange(len(logits)) % V
    logprobs = logits.log_softmax(-1)
    losses = cross_entropy(logprobs.gather(1, targets[:, None])[:, 0], logprobs.mean(-1), smoothing)
    expected = torch.nn.functional.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)
    torch.testing.assert_close(losses, expected, rtol=0, atol=1e-10)
    (ours,) = torch.autograd.grad(losses.sum(), logits)
    teacher = (1 - smoothing) * torch.nn.functional.one_hot(targets, V).double() + smoothing / V
    torch.testing.assert_close(ours, logits.softmax(-1) - teacher, rtol=0, atol=1e-10)


def test_smoothing_without_mean_logprobs_is_refused():
    with pytest.raises(ValueError, match="mean_logprob"):
        cross_entropy(torch.zeros(2), label_smoothing=0.1)


def test_dynamic_fine_tuning_weighs_the_gradient_of_each_token_by_its_probability():
    logprobs = torch.tensor([-0.5, -4.0], requires_grad=True)
    losses = dft(logprobs)
    assert losses.tolist() == pytest.approx([0.5 * 0.60653066, 4.0 * 0.01831564])
    (gradient,) = torch.autograd.grad(losses.sum(), logprobs)
    assert gradient.tolist() == pytest.approx([-0.60653066, -0.01831564])


def test_z_loss_pulls_the_normaliser_towards_one():
    log_normalisers = torch.tensor([3.0, -1.0], requires_grad=True)
    losses = z_loss(log_normalisers, 0.1)
    assert losses.tolist() == pytest.approx([0.9, 0.1])
    (gradient,) = torch.autograd.grad(losses.sum(), log_normalisers)
    assert gradient.tolist() == pytest.approx([0.6, -0.2])
