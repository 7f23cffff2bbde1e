"""The completions of one HTTP request, started together, and their texts, which end before the first stop string."""

import secrets
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stillhouse.serving.generation import Generation, GenerationRequest
from stillhouse.serving.protocol import ChatRequest, CompletionRequest
from stillhouse.serving.worker import ModelWorker
from stillhouse.store.fingerprint import digest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SEED_BITS: Final = 63
_PART_OF_A_CHARACTER: Final = "\ufffd"


class CompletionText:
    """Reads the tokens of one completion.

    The token that ends it, one of `stop_ids`, is no part of the text, nor are special tokens with
    `skip_special_tokens`.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        stop_ids: Collection[int],
        stop: Sequence[str] = (),
        *,
        skip_special_tokens: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._stop_ids = stop_ids
        self._stop = stop
        self._skip_special_tokens = skip_special_tokens
        self._longest = max(map(len, stop), default=0)
        self._ids: list[int] = []
        self._start = 0
        """First token of those that are decoded again, since a token's text may depend on the one before."""
        self._num_decoded = 0
        self._tail = ""

    def read(self, token: int) -> bool:
        """Take in the next token; return whether a stop string is complete."""
        if token not in self._stop_ids:
            self._ids.append(token)
            before = self._decode(self._ids[self._start : self._num_decoded])
            after = self._decode(self._ids[self._start :])
            if not after.endswith(_PART_OF_A_CHARACTER):
                self._start, self._num_decoded = self._num_decoded, len(self._ids)
                self._tail = self._tail[-self._longest :] + after[len(before) :]
        return any(stop in self._tail for stop in self._stop)

    def of(self, ids: Sequence[int]) -> str:
        """Return the text of a completion of these tokens."""
        text = self._decode(ids[:-1] if ids and ids[-1] in self._stop_ids else ids)
        # By their ends, as if the characters came one by one: where tokens begin and end must not matter.
        places = [(place + len(stop), place) for stop in self._stop if (place := text.find(stop)) >= 0]
        return text[: min(places)[1]] if places else text

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip_special_tokens)


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
