import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import httpx
import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.processes.guarded_process import GuardedProcess
from stillhouse.serving.generation import Generation
from stillhouse.serving.models import load_model

if TYPE_CHECKING:
    from openai import OpenAI


@pytest.fixture(scope="session")
def model() -> PreTrainedModel:
    return load_model("embedded:student", device="cpu", num_threads=1)


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerBase:
    return load_tokenizer("embedded:student")


@pytest.fixture
def prompts() -> list[list[int]]:
    """Return prompts of very different lengths, 1 to 120 tokens."""
    rng = random.Random(0)
    return [[rng.randrange(3, 600) for _ in range(length)] for length in (1, 120, 7, 33, 64, 2, 90, 15, 50)]


@pytest.fixture
def teacher_forced() -> Callable[..., list[float]]:
    """Return log-probabilities of a completion by one plain forward pass, against which the engine is checked."""

    def score(
        model: PreTrainedModel, prompt: Sequence[int], completion: Sequence[int], temperature: float = 1.0
    ) -> list[float]:
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1]
        logprobs = (logits / temperature).log_softmax(-1)
        return logprobs.gather(-1, torch.tensor(list(completion))[:, None])[:, 0].tolist()

    return score


@pytest.fixture
def assert_forced(teacher_forced: Callable[..., list[float]]) -> Callable[..., None]:
    """Check the log-probabilities of generations, one for each prompt, against `teacher_forced`."""

    def check(
        model: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        generations: Sequence[Generation],
        temperature: float = 1.0,
        tolerance: float = 1e-4,
    ) -> None:
        for prompt, generation in zip(prompts, generations, strict=True):
            expected = teacher_forced(model, prompt, generation.completion_ids, temperature)
            assert generation.logprobs == pytest.approx(expected, abs=tolerance)

    return check


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """Yield the URL of a real server of the embedded student: two places, three to wait, the key `secret`."""
    options = {"model": "embedded:student", "name": "student", "device": "cpu", "num_threads": 1}
    options |= {"max_batch": 2, "max_pending": 3, "api_key_env": "TEST_SERVER_KEY"}
    with GuardedProcess("stillhouse.serving", [json.dumps(options)], {"TEST_SERVER_KEY": "secret"}) as process:
        line = process.lines.readline()
        assert line, "the server did not come up"
        yield json.loads(line)["url"]


@pytest.fixture
def http(server: str) -> Iterator[httpx.Client]:
    """Yield a raw client of `server`."""
    with httpx.Client(base_url=server, timeout=60.0, headers={"authorization": "Bearer secret"}) as client:
        yield client


@pytest.fixture
def openai(server: str) -> "Iterator[OpenAI]":
    """Yield OpenAI's client of `server`, without retries."""
    # Here, since a machine that runs the tests for CUDA alone does not have it.
    from openai import OpenAI

    with OpenAI(base_url=server, api_key="secret", max_retries=0) as client:
        yield client
