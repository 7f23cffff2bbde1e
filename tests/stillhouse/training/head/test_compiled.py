"""The compiled passes over the logits against those of the CPU, in float64."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from stillhouse.config import Divergence
from stillhouse.training.head.compiled import compiled
from stillhouse.training.head.fused import fused_loss
from stillhouse.training.head.scores import Reference, TokenLosses, TokenScores
from stillhouse.training.losses import cross_entropy
from stillhouse.types import JsonObject

pytestmark = pytest.mark.slow  # each compiles for some seconds

H, R, V, S = 8, 12, 50, 44
TERMS = {
    "reverse_kl": Divergence(kind="reverse_kl", weight=0.5),
    "forward_kl": Divergence(kind="forward_kl"),
    "jsd": Divergence(kind="jsd", beta=0.3),
    "skewed_forward_kl": Divergence(kind="skewed_forward_kl"),
    "skewed_reverse_kl": Divergence(kind="skewed_reverse_kl"),
    "top_k": Divergence(kind="reverse_kl", top_k=5),
}


@pytest.fixture(autouse=True)
def _nothing_compiled() -> None:
    torch._dynamo.reset()
    compiled.cache_clear()
    counters.clear()


def likelihood(scores: TokenScores, values: Mapping[str, Tensor]) -> TokenLosses:
    return TokenLosses(cross_entropy(scores.logprobs_N))


def of_every_score(scores: TokenScores, values: Mapping[str, Tensor]) -> TokenLosses:
    assert scores.entropy_N is not None
    losses_N = values["weights"] * scores.logprobs_N.tanh()
    if scores.divergence_N is not None:
        losses_N = losses_N + 0.3 * scores.divergence_N * scores.logprobs_N
    return TokenLosses(
        losses_N,
        means={
            "entropy": scores.entropy_N,
            "top": scores.is_top_N.double(),
            "normaliser": scores.log_normalisers_N,
        },
    )


def figures(num_tokens: int, loss: Any, *, is_compiled: bool, chunk_size: int = 10, **more: Any) -> JsonObject:
    """The loss, its gradients and what it reports, of the same random inputs each time."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    hidden, head, teacher = random(num_tokens, H).requires_grad_(), nn.Linear(H, V), nn.Linear(R, V + 3)
    head.weight, head.bias = nn.Parameter(random(V, H)), nn.Parameter(random(V))
    teacher.weight, teacher.bias = nn.Parameter(random(V + 3, R)), nn.Parameter(random(V + 3))
    if "divergence" in more:
        more["reference"] = Reference(0.6 * random(num_tokens, R), teacher.requires_grad_(False), S)
    totals = fused_loss(
        hidden,
        head,
        torch.randint(S, (num_tokens,), generator=generator),
        {"weights": random(num_tokens)},
        loss,
        scale=0.3,
        temperature=0.7,
        chunk_elements=chunk_size * V,
        compiled=is_compiled,
        **more,
    )
    gradients = torch.autograd.grad(totals.loss, [hidden, head.weight, head.bias])
    by_name = dict(zip(("hidden", "weight", "bias"), gradients, strict=True))
    return {"loss": totals.loss.detach(), **by_name, **totals.sums}


def assert_equal(num_tokens: int, loss: Any, **more: Any) -> None:
    seen, expected = (figures(num_tokens, loss, is_compiled=flag, **more) for flag in (True, False))
    assert seen.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(seen[name], value, rtol=1e-12, atol=1e-11, msg=name)


@pytest.mark.parametrize("wants_entropy", [False, True])
def test_scores_and_gradients_are_those_of_the_cpu(wants_entropy: bool):
    assert_equal(37, of_every_score if wants_entropy else likelihood, wants_entropy=wants_entropy)


@pytest.mark.parametrize("name", TERMS)
def test_every_divergence_is_that_of_the_cpu(name: str):
    assert_equal(23, of_every_score, wants_entropy=True, divergence=(TERMS[name],))
    assert not counters["graph_break"]


def test_chunks_of_any_length_share_one_kernel_of_each_kind():
    for num_tokens, chunk_size in ((37, 10), (64, 64), (11, 4), (1, 10), (0, 10), (50, 25), (120, 50)):
        assert_equal(num_tokens, likelihood, chunk_size=chunk_size)
    assert counters["stats"]["unique_graphs"] == 2


def test_logits_in_half_precision_are_not_rounded_again_before_their_gradient():
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(16, 64, generator=generator).bfloat16().requires_grad_()
    head = nn.Linear(64, 500, bias=False).bfloat16().requires_grad_(False)
    targets = torch.randint(500, (16,), generator=generator)
    exact = nn.functional.cross_entropy((hidden @ head.weight.t()).float(), targets, reduction="sum")
    (expected,) = torch.autograd.grad(exact, hidden)
    errors = []
    for is_compiled in (False, True):
        ours = fused_loss(hidden, head, targets, {}, likelihood, scale=1.0, compiled=is_compiled).loss
        torch.testing.assert_close(ours.detach(), exact.detach(), rtol=1e-5, atol=0)
        (seen,) = torch.autograd.grad(ours, hidden)
        errors.append((seen.float() - expected.float()).norm().item())
    assert errors[1] <= errors[0]
