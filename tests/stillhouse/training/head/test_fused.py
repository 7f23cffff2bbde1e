"""The fused output layer against naive logits and autograd, in float64."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stillhouse.training.head.fused import LossSums, fused_loss
from stillhouse.training.head.scores import TokenScores
from stillhouse.training.losses import cross_entropy, dft, importance_sampling, z_loss
from stillhouse.training.method import TokenLosses

N, H, V = 37, 8, 50
SCALE = 0.3
TOLERANCE = 1e-10
WANTS = frozenset({"entropy", "mean_logprob"})

Loss = Callable[[TokenScores, Mapping[str, Tensor]], TokenLosses]


def some_loss(scores: TokenScores, values: Mapping[str, Tensor]) -> TokenLosses:
    """Uses every score, and another weight for each token."""
    assert scores.mean_logprobs_N is not None
    assert scores.entropy_N is not None
    losses_N = (
        values["weights"] * scores.logprobs_N.tanh()
        - 0.1 * scores.logprobs_N.exp() * scores.log_normalisers_N
        + 0.2 * scores.mean_logprobs_N.square()
    )
    return TokenLosses(
        losses_N,
        means={"entropy": scores.entropy_N, "accuracy": scores.is_top_N.to(losses_N)},
        ratios={"perplexity": (scores.logprobs_N, values["weights"])},
        maxima={"best": scores.logprobs_N},
    )


LOSSES: dict[str, Loss] = {
    "cross_entropy": lambda scores, _: TokenLosses(cross_entropy(scores.logprobs_N)),
    "label_smoothing": lambda scores, _: TokenLosses(cross_entropy(scores.logprobs_N, scores.mean_logprobs_N, 0.1)),
    "z_loss": lambda scores, _: TokenLosses(cross_entropy(scores.logprobs_N) + z_loss(scores.log_normalisers_N, 0.01)),
    "dft": lambda scores, _: TokenLosses(dft(scores.logprobs_N)),
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
        mean_logprobs_N=logprobs.mean(-1),
        entropy_N=-(logprobs.exp() * logprobs).sum(-1).detach(),
    )
    return loss(scores, values)


def assert_same_as_naive(
    arguments: tuple[Tensor, nn.Linear, Tensor, dict[str, Tensor]], loss: Loss, *, temperature: float, chunk_size: int
) -> LossSums:
    hidden, head, *_ = arguments
    trained = [tensor for tensor in (hidden, *head.parameters()) if tensor.requires_grad]
    ours = fused_loss(
        *arguments, loss, scale=SCALE, temperature=temperature, wants=WANTS, chunk_elements=chunk_size * V
    )
    naive = naive_losses(*arguments, loss, temperature)
    torch.testing.assert_close(ours.loss, naive.losses_N.sum() * SCALE, rtol=0, atol=TOLERANCE)
    for seen, expected in zip(
        torch.autograd.grad(ours.loss, trained),
        torch.autograd.grad(naive.losses_N.sum() * SCALE, trained),
        strict=True,
    ):
        torch.testing.assert_close(seen, expected, rtol=0, atol=TOLERANCE)
    return ours


@pytest.mark.parametrize("name", LOSSES)
def test_closed_form_of_every_loss_equals_autograd(name: str):
    assert_same_as_naive(inputs(), LOSSES[name], temperature=0.7, chunk_size=10)


@pytest.mark.parametrize("chunk_size", [1, 5, 36, 37, 1000])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("bias", [False, True])
def test_chunks_change_neither_loss_nor_gradients(chunk_size: int, temperature: float, bias: bool):
    assert_same_as_naive(inputs(bias=bias), some_loss, temperature=temperature, chunk_size=chunk_size)


def test_one_token_is_enough():
    assert_same_as_naive(inputs(1), some_loss, temperature=1.0, chunk_size=10)
