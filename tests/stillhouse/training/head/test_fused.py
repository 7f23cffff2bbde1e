"""The fused output layer against naive logits and autograd, in float64."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stillhouse.training.head.fused import LossSums, fused_loss
from stillhouse.training.head.scores import TokenLosses, TokenScores
from stillhouse.training.losses import cross_entropy, importance_sampling
from tests.stillhouse.training.head.gradients import assert_close, assert_same

N, H, V = 37, 8, 50
SCALE = 0.3

Loss = Callable[[TokenScores, Mapping[str, Tensor]], TokenLosses]


def some_loss(scores: TokenScores, values: Mapping[str, Tensor]) -> TokenLosses:
    """Uses every score, and another weight for each token."""
    assert scores.entropy_N is not None
    losses_N = values["weights"] * scores.logprobs_N.tanh()
    return TokenLosses(
        losses_N,
        means={
            "entropy": scores.entropy_N,
            "accuracy": scores.is_top_N.to(losses_N),
            "normaliser": scores.log_normalisers_N,
        },
        ratios={"perplexity": (scores.logprobs_N, values["weights"])},
        maxima={"best": scores.logprobs_N},
    )


LOSSES: dict[str, Loss] = {
    "cross_entropy": lambda scores, _: TokenLosses(cross_entropy(scores.logprobs_N)),
    "importance_sampling": lambda scores, values: TokenLosses(
        importance_sampling(scores.logprobs_N, values["sampling"], values["weights"])
    ),
    "some_loss": some_loss,
}


def inputs(num_tokens: int = N, *, bias: bool = False) -> tuple[Tensor, nn.Linear, Tensor, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    random: dict[str, Any] = {"dtype": torch.float64, "generator": generator}
    hidden = torch.randn(num_tokens, H, **random).requires_grad_()
    head = nn.Linear(H, V, bias=bias, dtype=torch.float64)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, **random))
    values = {"weights": torch.randn(num_tokens, **random), "sampling": -3 * torch.rand(num_tokens, **random)}
    return hidden, head, torch.randint(V, (num_tokens,), generator=generator), values


def naive_losses(
    hidden: Tensor, head: nn.Linear, targets: Tensor, values: dict[str, Tensor], loss: Loss, temperature: float = 1.0
) -> TokenLosses:
    logits = head(hidden) / temperature
    logprobs = logits.log_softmax(-1)
    scores = TokenScores(
        targets_N=targets,
        logprobs_N=logprobs.gather(1, targets[:, None])[:, 0],
        log_normalisers_N=logits.logsumexp(-1),
        is_top_N=logprobs.argmax(-1) == targets,
        entropy_N=-(logprobs.exp() * logprobs).sum(-1).detach(),
    )
    return loss(scores, values)


def run(arguments: tuple[Any, ...], loss: Loss, *, chunk_size: int, temperature: float = 1.0) -> LossSums:
    return fused_loss(
        *arguments, loss, scale=SCALE, temperature=temperature, wants_entropy=True, chunk_elements=chunk_size * V
    )


def assert_same_as_naive(
    arguments: tuple[Tensor, nn.Linear, Tensor, dict[str, Tensor]],
    loss: Loss,
    *,
    chunk_size: int,
    temperature: float = 1.0,
) -> None:
    hidden, head, *_ = arguments
    trained = [tensor for tensor in (hidden, *head.parameters()) if tensor.requires_grad]
    ours = run(arguments, loss, chunk_size=chunk_size, temperature=temperature).loss
    assert_same(ours, naive_losses(*arguments, loss, temperature).losses_N.sum() * SCALE, trained)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("chunk_size", [1, 5, 36, 37, 1000])
@pytest.mark.parametrize("bias", [False, True])
def test_closed_form_of_every_loss_in_chunks_equals_autograd(name: str, chunk_size: int, bias: bool):
    assert_same_as_naive(inputs(bias=bias), LOSSES[name], chunk_size=chunk_size, temperature=0.7)


def test_frozen_head_passes_its_gradient_on_and_computes_none_of_its_own(sizes):
    hidden, head, targets, values = inputs(bias=True)
    head.requires_grad_(False)
    assert_same_as_naive((hidden, head, targets, values), some_loss, chunk_size=10)
    with sizes:
        run((hidden, head, targets, values), some_loss, chunk_size=10)
    assert (V, H) not in sizes.shapes
    run((hidden, head, targets, values), some_loss, chunk_size=10).loss.backward()
    assert head.weight.grad is None


def test_weight_tied_to_the_embedding_gets_both_gradients():
    _, head, targets, values = inputs()
    embedding = nn.Embedding(V, H, dtype=torch.float64)
    embedding.weight = head.weight
    ids = targets.roll(1)
    ours = run((embedding(ids), head, targets, values), some_loss, chunk_size=10).loss
    naive = naive_losses(embedding(ids), head, targets, values, some_loss).losses_N.sum() * SCALE
    assert_same(ours, naive, [head.weight])


def test_no_tokens_give_zero_losses_and_gradients_under_the_same_names():
    hidden, head, targets, values = inputs()
    some, none = (
        run((hidden[:n], head, targets[:n], {k: v[:n] for k, v in values.items()}), some_loss, chunk_size=10)
        for n in (N, 0)
    )
    none.loss.backward()
    assert none.loss.item() == 0.0
    assert hidden.grad is not None
    assert head.weight.grad is not None
    assert hidden.grad.abs().max() == head.weight.grad.abs().max() == 0.0
    assert [*none.sums, *none.ratios, *none.maxima] == [*some.sums, *some.ratios, *some.maxima]
    assert none.sums["accuracy"] == 0.0
    assert none.ratios["perplexity"].tolist() == [0.0, 0.0]
    assert none.maxima["best"] == -torch.inf


def test_measurements_are_summed_over_chunks_and_carry_no_gradient():
    arguments = inputs()
    totals = run(arguments, some_loss, chunk_size=10)
    naive = naive_losses(*arguments, some_loss)
    for name, values_N in naive.means.items():
        assert_close(totals.sums[name], values_N.sum())
    above, below = naive.ratios["perplexity"]
    assert_close(totals.ratios["perplexity"], torch.stack([above.sum(), below.sum()]))
    assert_close(totals.maxima["best"], naive.maxima["best"].max())
    measured = [*totals.sums.values(), *totals.ratios.values(), *totals.maxima.values()]
    assert not any(value.requires_grad for value in measured)
    assert totals.loss.requires_grad


def test_scores_that_nobody_wants_are_not_computed():
    def loss(scores: TokenScores, values: Mapping[str, Tensor]) -> TokenLosses:
        assert scores.entropy_N is None
        return TokenLosses(-scores.logprobs_N)

    fused_loss(*inputs(), loss, scale=1.0)


def test_nothing_as_large_as_all_logits_is_ever_allocated(sizes):
    hidden, head, targets, values = inputs(200)
    with sizes:
        run((hidden, head, targets, values), some_loss, chunk_size=10).loss.backward()
    assert max(math.prod(shape) for shape in sizes.shapes) == max(2 * 10 * V, 200 * H)


def test_without_grad_mode_there_is_a_value_and_no_gradient(sizes):
    arguments = inputs()
    with torch.no_grad(), sizes:
        value = run(arguments, some_loss, chunk_size=10).loss
    assert not value.requires_grad
    assert (V, H) not in sizes.shapes
    assert_close(value, run(arguments, some_loss, chunk_size=10).loss.detach())


def test_loss_can_be_differentiated_only_once():
    loss = run(inputs(), some_loss, chunk_size=10).loss
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="differentiated twice"):
        loss.backward()


def test_half_precision_has_float32_scores_and_gradients_close_to_the_exact_ones():
    vocabulary = 20_000  # more than one block of the weight's gradient
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(16, 64, generator=generator, requires_grad=True)
    head = nn.Linear(64, vocabulary, bias=False)
    targets = torch.randint(vocabulary, (16,), generator=generator)

    def loss(scores: TokenScores, values: Mapping[str, Tensor]) -> TokenLosses:
        assert scores.logprobs_N.dtype is scores.log_normalisers_N.dtype is torch.float32
        return TokenLosses(cross_entropy(scores.logprobs_N))

    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = fused_loss(hidden, head, targets, {}, loss, scale=1.0, chunk_elements=5 * vocabulary).loss
    exact = nn.functional.cross_entropy(head(hidden), targets, reduction="sum")
    torch.testing.assert_close(ours, exact, rtol=1e-3, atol=0)
    for seen, expected in zip(
        torch.autograd.grad(ours, [hidden, head.weight]), torch.autograd.grad(exact, [hidden, head.weight]), strict=True
    ):
        assert seen.dtype is torch.float32
        assert (seen - expected).norm() < 0.01 * expected.norm()


def test_half_precision_sums_the_weight_gradient_in_float32():
    hidden, head, targets, _ = inputs(1)
    hidden, head = hidden.detach().bfloat16(), head.bfloat16()
    loss = LOSSES["cross_entropy"]
    one = fused_loss(hidden, head, targets, {}, loss, scale=1.0).loss
    many = fused_loss(hidden.expand(400, H), head, targets.expand(400), {}, loss, scale=1.0, chunk_elements=V).loss
    # A sum in bfloat16 would stop growing at some 256 terms.
    (of_one,), (of_many,) = (torch.autograd.grad(loss, head.weight) for loss in (one, many))
    torch.testing.assert_close(of_many.float(), 400 * of_one.float(), rtol=0.01, atol=0)


def test_confident_token_keeps_its_gradient_in_half_precision():
    head = nn.Linear(2, 3, bias=False, dtype=torch.bfloat16)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[4.0, 0.0], [-4.0, 0.0], [-4.0, 1.0]]))
    hidden = torch.ones(1, 2, dtype=torch.bfloat16, requires_grad=True)
    loss = fused_loss(hidden, head, torch.tensor([0]), {}, LOSSES["cross_entropy"], scale=1.0).loss
    exact = nn.functional.cross_entropy(hidden.float() @ head.weight.float().t(), torch.tensor([0]))
    (ours,), (expected,) = (torch.autograd.grad(value, hidden) for value in (loss, exact))
    assert 0 < expected.abs().max() < 0.02
    torch.testing.assert_close(ours, expected, rtol=0.01, atol=0)


@pytest.mark.gpu
def test_gpu_and_cpu_agree():
    hidden, head, targets, values = inputs()
    expected = torch.autograd.grad(
        run((hidden, head, targets, values), some_loss, chunk_size=10).loss, [hidden, head.weight]
    )
    there = hidden.detach().cuda().requires_grad_()
    head = head.cuda()
    values = {name: value.cuda() for name, value in values.items()}
    seen = torch.autograd.grad(
        run((there, head, targets.cuda(), values), some_loss, chunk_size=10).loss, [there, head.weight]
    )
    for one, other in zip(seen, expected, strict=True):
        assert_close(one.cpu(), other)


@pytest.mark.gpu
@pytest.mark.parametrize("num_tokens", [4096, 4000])
def test_compiled_passes_of_a_gpu_agree_with_plain_ones(num_tokens: int):
    generator = torch.Generator("cuda").manual_seed(0)
    vocabulary = 151_936
    hidden = torch.randn(num_tokens, 256, device="cuda", generator=generator).bfloat16().requires_grad_()
    head = nn.Linear(256, vocabulary, bias=False, device="cuda").bfloat16().requires_grad_(False)
    targets = torch.randint(vocabulary, (num_tokens,), device="cuda", generator=generator)
    size = {"chunk_elements": 1024 * vocabulary}
    plain, ours = (
        fused_loss(hidden, head, targets, {}, LOSSES["cross_entropy"], scale=1e-3, compiled=is_compiled, **size).loss
        for is_compiled in (False, True)
    )
    torch.testing.assert_close(ours, plain, rtol=1e-5, atol=0)
    (seen,), (expected,) = (torch.autograd.grad(loss, hidden) for loss in (ours, plain))
    assert (seen - expected).norm() <= 0.01 * expected.norm()
