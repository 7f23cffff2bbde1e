"""The completions of one HTTP request: started together, then awaited or streamed."""

import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stillhouse.serving.answers import Completion
from stillhouse.serving.chat_request import ChatRequest
from stillhouse.serving.constraint import GrammarConstraint
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


@dataclass(frozen=True)
class PlannedCompletions:
    """What a request asks the worker for."""

    body: ChatRequest | CompletionRequest
    prompts: Sequence[list[int]]
    """One for each choice."""
    max_tokens: int
    adapter: str | None = None
    constraint: GrammarConstraint | None = None


@dataclass(frozen=True)
class RunningCompletion:
    """A completion that the worker samples."""

    future: "Future[Generation]"
    text: CompletionText
    constraint: GrammarConstraint | None

    def finished(self, generation: Generation) -> Completion:
        """The completion once it is sampled; ApiError if its grammar was given up."""
        if self.constraint is not None:
            self.constraint.check()
        return Completion(generation, self.text.finish(generation.completion_ids))


Reader = Callable[[int, CompletionText], Callable[[int, float], bool]]
"""Makes the `on_token` of a choice, which reads its text, from its index."""


def start(
    worker: ModelWorker, model: ServedModel, planned: PlannedCompletions, reader: Reader | None = None
) -> list[RunningCompletion]:
    """Hands all choices to the worker; without a `reader` only texts with stop strings are read as they come."""
    body = planned.body
    if reader is None and body.stop:
        reader = _reader
    seed = secrets.randbits(_SEED_BITS) if body.seed is None else body.seed % 2**_SEED_BITS
    stop_ids = frozenset(body.stop_token_ids) | (frozenset() if body.ignore_eos else model.stop_ids)
    running = []
    for place, ids in enumerate(planned.prompts):
        text = CompletionText(model.tokenizer, stop_ids, body.stop, skip_special_tokens=body.skip_special_tokens)
        constraint = None if planned.constraint is None else planned.constraint.copy()
        request = GenerationRequest(
            prompt_ids=ids,
            max_tokens=planned.max_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
            # The first choice has the seed itself, so that any `Generator` reproduces n=1 with that seed.
            seed=seed if place == 0 else int(digest([seed, place])[:15], 16),
            stop_ids=stop_ids,
            constraint=constraint,
            on_token=None if reader is None else reader(place, text),
        )
        running.append(RunningCompletion(worker.sample(request, planned.adapter), text, constraint))
    return running


def _reader(index: int, text: CompletionText) -> Callable[[int, float], bool]:
    return lambda token, logprob: text.read(token)
