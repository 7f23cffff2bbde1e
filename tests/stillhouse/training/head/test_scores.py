import pytest
import torch
from torch import nn

from stillhouse.training.head.scores import Predictions

N, H, V = 37, 8, 50


def inputs(bias: bool = False) -> tuple[torch.Tensor, nn.Linear, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(N, H, dtype=torch.float64, generator=generator, requires_grad=True)
    head = nn.Linear(H, V, bias=bias, dtype=torch.float64)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64, generator=generator))
    return hidden, head, torch.randint(V, (N,), generator=generator)


@pytest.mark.parametrize("chunk_size", [1, 5, 36, 37, 1000])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_chunks_change_neither_scores_nor_gradients(chunk_size: int, temperature: float):
    hidden, head, targets = inputs(bias=True)
    weights = torch.linspace(-1, 1, N, dtype=torch.float64)
    scores = Predictions(hidden, head, max_chunk_elements=chunk_size * V).score(targets, temperature)
    ours = torch.autograd.grad((weights * scores.logprobs_N).sum(), [hidden, head.weight, head.bias])

    logprobs = (head(hidden) / temperature).log_softmax(-1)
    chosen = logprobs[torch.arange(N), targets]
    naive = torch.autograd.grad((weights * chosen).sum(), [hidden, head.weight, head.bias])

    torch.testing.assert_close(scores.logprobs_N, chosen, rtol=0, atol=1e-12)
    torch.testing.assert_close(scores.entropy_N, -(logprobs.exp() * logprobs).sum(-1), rtol=0, atol=1e-12)
    assert scores.is_top_N.tolist() == (logprobs.argmax(-1) == targets).tolist()
    for one, other in zip(ours, naive, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_frozen_head_passes_gradient_to_hidden_states_only():
    hidden, head, targets = inputs()
    head.requires_grad_(False)
    Predictions(hidden, head, max_chunk_elements=5 * V).score(targets).logprobs_N.sum().backward()
    assert hidden.grad is not None
    assert head.weight.grad is None


def test_logits_of_more_than_one_chunk_are_not_kept_for_the_backward_pass():
    hidden, head, targets = inputs()
    kept: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        Predictions(hidden, head, max_chunk_elements=5 * V).score(targets)

    assert kept.count(5 * V) == 0


def test_half_precision_logits_are_scored_in_float32():
    hidden, head, targets = inputs()
    scores = Predictions(hidden.bfloat16(), head.bfloat16()).score(targets)
    assert scores.logprobs_N.dtype is torch.float32
