"""The completions of one HTTP request, started together."""

import secrets
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stillhouse.serving.chat_request import ChatRequest
from stillhouse.serving.generation import Generation, GenerationRequest
from stillhouse.serving.protocol import CompletionRequest
from stillhouse.serving.text import CompletionText
from stillhouse.serving.worker import ModelWorker
from stillhouse.store.fingerprint import digest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SEED_BITS: Final = 63


@dataclass(frozen=True)
class ServedModel:
    """The model behind the routes."""

    name: str
    tokenizer: "PreTrainedTokenizerBase"
    stop_ids: frozenset[int]
    vocab_size: int
    context_length: int


def start(
    worker: ModelWorker,
    model: ServedModel,
    body: ChatRequest | CompletionRequest,
    prompts: Sequence[list[int]],
    max_tokens: int,
) -> list[tuple["Future[Generation]", CompletionText]]:
    """Hand a completion of each prompt to the worker; only texts with stop strings are read as they come."""
    seed = secrets.randbits(_SEED_BITS) if body.seed is None else body.seed % 2**_SEED_BITS
    stop_ids = frozenset(body.stop_token_ids) | (frozenset() if body.ignore_eos else model.stop_ids)
    running = []
    for place, ids in enumerate(prompts):
        text = CompletionText(model.tokenizer, stop_ids, body.stop, skip_special_tokens=body.skip_special_tokens)
        request = GenerationRequest(
            prompt_ids=ids,
            max_tokens=max_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
            # The first choice has the seed itself, so that any `Generator` reproduces n=1 with that seed.
            seed=seed if place == 0 else int(digest([seed, place])[:15], 16),
            stop_ids=stop_ids,
            on_token=text.read if body.stop else None,
        )
        running.append((worker.sample(request), text))
    return running
