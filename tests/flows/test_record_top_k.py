"""From a teacher behind a chat endpoint to a student that learns its distribution, without a scoring pass."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import DistillConfig
from stillhouse.testing import ReceivedRequest, Reply, SimulatedProvider, completion
from stillhouse.testing.logprobs import token_logprobs
from stillhouse.training.model.token_bytes import token_spellings

TOKENIZER = load_tokenizer("embedded:student")
SPELLINGS = token_spellings(TOKENIZER)


def answer(request: ReceivedRequest) -> Reply:
    """In tokens of the student's vocabulary."""
    said = f"The answer is {len(request.raw) % 50}."
    body = completion(said)
    tokens = [SPELLINGS[token] for token in TOKENIZER(said)["input_ids"]]
    body["choices"][0]["logprobs"] = token_logprobs(tokens, request.body["top_logprobs"])
    return Reply(body)


@pytest.mark.slow
def test_a_chat_endpoints_distribution_is_learnt_from_what_it_told_while_it_sampled(
    provider: SimulatedProvider,
    smoke_config: Callable[..., DistillConfig],
    little_training: dict[str, Any],
    tmp_path: Path,
) -> None:
    from flows.train_sft import train_sft

    settings = {
        "prompts__max_prompts": 8,
        "tools__builtin": [],
        "teacher__base_url": provider.url,
        "rollouts__record_top_k": 6,
        "dataset__filters__drop_wrong": False,
        "sft__loss": "kl",
        "sft__top_k": 6,
        "tracking__enabled": False,
    }
    config = smoke_config(tmp_path, **{**little_training, **settings})
    trained = train_sft(config)
    assert len(provider.ledger) == 8
    assert not list(tmp_path.glob("scores/*")), "nothing is scored"
    assert trained.cached["scores"] is False
    again = train_sft(config.model_copy(update={"sft": config.sft.model_copy(update={"learning_rate": 1e-3})}))
    assert (again.cached["rollouts"], again.cached["scores"], again.cached["sft"]) == (True, True, False)
    assert len(provider.ledger) == 8
