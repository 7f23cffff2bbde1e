import pytest
import torch

from stillhouse.training.head.softmax import Slopes, block_rows, logit_gradients_, softmax_

C, V = 40, 60_000


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
    scores = softmax_(logits.clone(), targets, 0.7, {"entropy", "mean_logprob"})
    assert scores.mean_logprobs_N is not None
    assert scores.entropy_N is not None
    for seen, expected in (
        (scores.logprobs_N, logprobs.gather(1, targets[:, None])[:, 0]),
        (scores.log_normalisers_N, (logits / 0.7).logsumexp(-1)),
        (scores.mean_logprobs_N, logprobs.mean(-1)),
        (scores.entropy_N, -(logprobs.exp() * logprobs).sum(-1)),
    ):
        torch.testing.assert_close(seen, expected, rtol=0, atol=1e-10)
    assert scores.is_top_N.tolist() == [row % 2 == 0 for row in range(C)]
    assert scores.targets_N is targets


def test_gradients_of_all_blocks_are_those_of_autograd(logits: torch.Tensor, targets: torch.Tensor):
    a, b, c = torch.randn(3, C, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    logits.requires_grad_()
    logprobs = logits.log_softmax(-1)
    loss = a * logprobs.gather(1, targets[:, None])[:, 0] + b * logits.logsumexp(-1) + c * logprobs.mean(-1)
    (expected,) = torch.autograd.grad(loss.sum(), logits)
    ours = logits.detach().clone()
    logit_gradients_(ours, softmax_(ours, targets), Slopes(a, b, c))
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-10)


def test_improbable_target_keeps_its_log_probability_where_its_probability_vanishes():
    logits = torch.tensor([[0.0, 300.0, 299.0]])
    scores = softmax_(logits.clone(), torch.tensor([0]))
    torch.testing.assert_close(scores.logprobs_N, logits.log_softmax(-1)[:, 0])
