"""The fused output layer beside a teacher's best tokens, against naive logits and autograd, in float64."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from stillhouse.config import Divergence
from stillhouse.serving.score import LogitScaling
from stillhouse.training.head.fused import LossSums, fused_loss
from stillhouse.training.head.scores import TokenLosses, TokenScores, TopReference
from tests.stillhouse.training.head.gradients import assert_close, assert_same

N, H, V, K = 23, 8, 50, 6
TEMPERATURE = 0.7
TERMS = (Divergence(kind="forward_kl", weight=0.5), Divergence(kind="jsd", beta=0.3, top_k=4))


class Inputs:
    """A student of V output rows, and K best tokens of a teacher of V + `more` of them, of which targets may be one."""

    def __init__(self, *, more: int = 0, dtype: torch.dtype = torch.float64, best_targets: bool = False) -> None:
        generator = torch.Generator().manual_seed(0)
        self.hidden = torch.randn(N, H, dtype=dtype, generator=generator).requires_grad_()
        self.head = nn.Linear(H, V, bias=False, dtype=dtype)
        self.head.weight = nn.Parameter(torch.randn(V, H, dtype=dtype, generator=generator))
        self.targets = torch.randint(V, (N,), generator=generator)
        logits = 2 * torch.randn(N, V + more, dtype=dtype, generator=generator)
        self.teacher = logits.log_softmax(-1)
        best = self.teacher.topk(K)
        if best_targets:
            self.targets = best.indices[:, 2]
        others = self.teacher.scatter(1, best.indices, -torch.inf).logsumexp(1)
        targets = self.teacher.gather(1, self.targets[:, None])[:, 0]
        self.reference = TopReference(best.indices, best.values, others, targets)

    def fused(self, *, chunk_size: int = 10, compiled: bool = False, scaling: LogitScaling | None = None) -> LossSums:
        return fused_loss(
            self.hidden,
            self.head,
            self.targets,
            {},
            loss,
            scale=0.3,
            temperature=TEMPERATURE,
            divergence=TERMS,
            reference=self.reference,
            scaling=scaling or LogitScaling(),
            chunk_elements=chunk_size * V,
            compiled=compiled,
        )

    def naive(self, scaling: LogitScaling | None = None) -> TokenScores:
        """By the definitions."""
        factor, cap = scaling or LogitScaling()
        logits = factor * self.head(self.hidden)
        logits = (logits if cap is None else cap * (logits / cap).tanh()) / TEMPERATURE
        log_p = logits.log_softmax(-1)
        value = torch.zeros(N, dtype=log_p.dtype)
        for row in range(N):
            target, best = int(self.targets[row]), self.reference.ids_NK[row].tolist()
            missing = [] if target in best else [target]
            known = [token for token in best if token < V] + missing
            p, q = merged(log_p[row].exp(), known), merged(self.teacher[row].exp(), known)
            value[row] += 0.5 * kl(q, p)
            few = [token for token in best[:4] if token < V] + missing
            p, q = merged(log_p[row].exp(), few), merged(self.teacher[row].exp(), few)
            m = 0.3 * q + 0.7 * p
            value[row] += 0.3 * kl(q, m) + 0.7 * kl(p, m)
        return TokenScores(
            targets_N=self.targets,
            logprobs_N=log_p.gather(1, self.targets[:, None])[:, 0],
            log_normalisers_N=logits.logsumexp(-1),
            is_top_N=logits.argmax(-1) == self.targets,
            divergence_N=value,
            reference_logprobs_N=self.reference.target_logprobs_N,
        )


def merged(whole: Tensor, ids: list[int]) -> Tensor:
    inside = whole[ids]
    return torch.cat([inside, 1 - inside.sum().view(1)])


def kl(one: Tensor, other: Tensor) -> Tensor:
    return (one * (one / other).log()).sum()


def loss(scores: TokenScores, values: Mapping[str, Tensor]) -> TokenLosses:
    assert scores.divergence_N is not None
    assert scores.reference_logprobs_N is not None
    advantages = scores.reference_logprobs_N - scores.logprobs_N.detach()
    return TokenLosses(scores.divergence_N - 0.1 * scores.logprobs_N * advantages)


def assert_as_naive(inputs: Inputs, scaling: LogitScaling | None = None, **settings: int) -> None:
    trained = [inputs.hidden, inputs.head.weight]
    ours = inputs.fused(scaling=scaling, **settings)
    total = loss(inputs.naive(scaling), {}).losses_N.sum() * 0.3
    assert_same(ours.loss, total, trained)


@pytest.mark.parametrize("chunk_size", [1, 5, 23, 1000])
@pytest.mark.parametrize("scaling", [None, LogitScaling(0.9), LogitScaling(0.9, 5.0)], ids=["raw", "scaled", "capped"])
def test_chunks_and_scaled_or_capped_logits_change_neither_loss_nor_gradients(
    scaling: LogitScaling | None, chunk_size: int
):
    assert_as_naive(Inputs(), scaling, chunk_size=chunk_size)


def test_mass_of_ids_that_the_student_does_not_have_counts_among_the_others():
    inputs = Inputs(more=30)
    assert (inputs.reference.ids_NK >= V).any(dim=1).sum() > N // 2
    assert_as_naive(inputs)


def test_probabilities_that_rounding_left_off_one_are_normalised():
    exact, rounded = Inputs(best_targets=True), Inputs(best_targets=True)
    ids, logprobs, others, targets = (getattr(exact.reference, name) for name in TopReference.__slots__)
    rounded.reference = TopReference(ids, logprobs + 0.01, others + 0.01, targets)
    assert_close(rounded.fused().loss, exact.fused().loss)


def test_half_precision_changes_the_loss_by_less_than_its_rounding():
    exact, rounded = Inputs(), Inputs()
    ids, logprobs, others, targets = (getattr(exact.reference, name) for name in TopReference.__slots__)
    rounded.reference = TopReference(ids, logprobs.half(), others.half(), targets)
    # Values from -8 to -4 are rounded to multiples of 2^-8.
    assert (rounded.fused().loss - exact.fused().loss).abs() < 0.3 * N * 2**-8


@pytest.mark.slow
def test_compiled_kernels_agree():
    inputs = Inputs(dtype=torch.float32)
    plain, compiled = (inputs.fused(compiled=flag) for flag in (False, True))
    trained = [inputs.hidden, inputs.head.weight]
    torch.testing.assert_close(compiled.loss, plain.loss, rtol=1e-5, atol=1e-5)
    gradients = (torch.autograd.grad(sums.loss, trained) for sums in (compiled, plain))
    for seen, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-5)
