"""`JournalledClient`: completions that are in the journal before they are used."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import NamedTuple

from stillhouse.chat.assistant_message import with_own_ids
from stillhouse.inference.completion import Completion, decode_completion, encode_completion
from stillhouse.inference.journal import Journal
from stillhouse.inference.model_client import ModelClient
from stillhouse.inference.sampling import ChatRequest
from stillhouse.inference.stats import RolloutStats


class Place(NamedTuple):
    """Where the journal keeps a completion."""

    rollout_key: str
    turn: int
    request_digest: str


class JournalledClient:
    """A client whose every answer is durable once it returns."""

    def __init__(self, client: ModelClient, journal: Journal, stats: RolloutStats) -> None:
        self._client = client
        self._journal = journal
        self._stats = stats

    def stored(self, place: Place) -> Completion | None:
        """Return the completion that an earlier attempt paid for; None where there is none."""
        body = self._journal.completion(*place)
        return None if body is None else decode_completion(body)

    async def complete(
        self, place: Place, request: ChatRequest, attempt: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> Completion:
        """Return what the journal keeps of one attempt's answer, which another process may have written first.

        Hold the request's slot meanwhile: then a crash costs at most one completion for each slot a second time.
        `attempt` is entered until the answer is durable. Raise RequestFailed as `ModelClient.complete`, and StoreError.
        """
        with attempt():
            completion = await self._client.complete(request)
            asks_top = request.sampling.record_top_k is not None
            self._stats.num_without_top += asks_top and completion.turn.top_logprobs is None
            completion = replace(completion, message=with_own_ids(completion.message, request.messages))
            body = encode_completion(completion)
            stored = await self._journal.put_completion(*place, body)
        return completion if stored == body else replace(decode_completion(stored), limits=completion.limits)
