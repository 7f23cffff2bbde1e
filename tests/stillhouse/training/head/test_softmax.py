import pytest
import torch

from stillhouse.training.head.softmax import Slopes, block_rows, logit_gradients_, softmax_

C, V = 24, 200_000


@pytest.fixture
def logits() -> torch.Tensor:
    logits = 5 * torch.randn(C, V, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert block_rows(logits) < C / 2, "expected several blocks"
    return logits


@pytest.fixture
def targets(logits: torch.Tensor) -> torch.Tensor:
    """Every other target is the most probable token."""
    random = torch.randint(V, (C,), generator=torch.Generator().manual_seed(1))
    return torch.where(torch.arange(C) % 2 == 0, logits.argmax(-1), random)


def test_scores_of_all_blocks_are_those_of_log_softmax(logits: torch.Tensor, targets: torch.Tensor):
    logprobs = (logits / 0.7).log_softmax(-1)
    scores = softmax_(logits.clone(), targets, 0.7, wants_entropy=True)
    assert scores.entropy_N is not None
    for seen, expected in (
        (scores.logprobs_N, logprobs.gather(1, targets[:, None])[:, 0]),
        (scores.log_normalisers_N, (logits / 0.7).logsumexp(-1)),
        (scores.entropy_N, -(logprobs.exp() * logprobs).sum(-1)),
    ):
        torch.testing.assert_close(seen, expected, rtol=0, atol=1e-10)
    assert scores.is_top_N.tolist() == [row % 2 == 0 for row in range(C)]
    assert scores.targets_N is targets


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.bfloat16, 2**-7)])
def test_gradients_of_all_blocks_are_those_of_autograd(
    logits: torch.Tensor, targets: torch.Tensor, dtype: torch.dtype, tolerance: float
):
    logits = logits.to(dtype).double().requires_grad_()
    ours = logits.detach().to(dtype, copy=True)
    a = torch.randn(C, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    loss = a * logits.log_softmax(-1).gather(1, targets[:, None])[:, 0]
    (expected,) = torch.autograd.grad(loss.sum(), logits)
    scores = softmax_(ours, targets)
    logit_gradients_(ours, scores, Slopes(a.to(scores.logprobs_N.dtype)))
    torch.testing.assert_close(ours.double(), expected, rtol=tolerance, atol=tolerance * 1e-4)


def test_improbable_target_keeps_its_log_probability_where_its_probability_vanishes():
    logits = torch.tensor([[0.0, 300.0, 299.0]])
    scores = softmax_(logits.clone(), torch.tensor([0]))
    torch.testing.assert_close(scores.logprobs_N, logits.log_softmax(-1)[:, 0])
