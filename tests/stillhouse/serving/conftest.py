import random
from collections.abc import Callable, Sequence

import pytest
import torch
from transformers import PreTrainedModel

from stillhouse.serving.models import load_model


@pytest.fixture(scope="session")
def model() -> PreTrainedModel:
    return load_model("embedded:student", device="cpu", num_threads=1)


@pytest.fixture
def prompts() -> list[list[int]]:
    """Prompts of very different lengths, 1 to 120 tokens."""
    rng = random.Random(0)
    return [[rng.randrange(3, 600) for _ in range(length)] for length in (1, 120, 7, 33, 64, 2, 90, 15, 50)]


@pytest.fixture
def teacher_forced() -> Callable[..., list[float]]:
    """Log-probabilities of a completion by one plain forward pass: the definition the engine is checked against."""

    def score(
        model: PreTrainedModel, prompt: Sequence[int], completion: Sequence[int], temperature: float = 1.0
    ) -> list[float]:
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1]
        logprobs = (logits / temperature).log_softmax(-1)
        return logprobs.gather(-1, torch.tensor(list(completion))[:, None])[:, 0].tolist()

    return score
