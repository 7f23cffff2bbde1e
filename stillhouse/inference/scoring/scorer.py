"""`Scorer`: scores of given tokens from a server, in batches of which those that fail are cut in two.

What a server cannot do with many sequences (it runs out of memory, answers late, refuses one of them) it may do with
fewer. A sequence that fails alone is sent again as often as its failure allows.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from stillhouse.config import BudgetConfig
from stillhouse.inference.budget import Budget
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.inference.model_server import ModelServer
from stillhouse.inference.rate_limit import Controller, RateLimits, RequestSize
from stillhouse.inference.requester import Requester
from stillhouse.inference.retry import Effects
from stillhouse.inference.scoring.api import GivenIds, ScoringApi, TokenSequence
from stillhouse.inference.scoring.given_ids_api import GivenIdsApi
from stillhouse.inference.scoring.ledger import ScoreLedger
from stillhouse.inference.scoring.scores import SequenceScores
from stillhouse.inference.stats import RolloutStats
from stillhouse.inference.transport import HttpAnswer
from stillhouse.inference.usage import read_usage
from stillhouse.types import Turn

_MAX_ATTEMPTS: Final = 6
_MAX_REFUSED_S: Final = 1800.0
_HALVED: Final = frozenset({FailureKind.TRANSIENT, FailureKind.STALL, FailureKind.PERMANENT})
_SHOWN_CHARACTERS: Final = 200

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Answer:
    body: Any
    turn: Turn
    limits: RateLimits | None
    scores: list[SequenceScores]
    """Of each sequence; empty if only spellings were requested."""


class Scorer:
    """Scores through one server; what was answered is in the ledger before it is used.

    Its coroutines run on the server's event loop. A request holds at most `batch_tokens`; a longer sequence goes alone,
    as does a `GivenIds`. With `hedge`, requests that are overdue by far are sent a second time. A server that answered
    before is waited for `max_outage_s`; `on_outage` is as `Requester` takes it.
    """

    def __init__(
        self,
        server: ModelServer,
        api: ScoringApi,
        ledger: ScoreLedger | None,
        controller: Controller,
        *,
        batch_tokens: int,
        temperature: float,
        budget: Budget | None = None,
        hedge: bool = True,
        max_outage_s: float = 0.0,
        on_outage: Callable[[float | None], None] = lambda seconds: None,
        effects: Effects = Effects(),  # noqa: B008
    ) -> None:
        self.url = f"{server.root}{api.path}"
        self.stats = RolloutStats()
        self._server = server
        self._api = api
        self.ledger = ledger
        """None until the server is known to be the teacher of a ledger; `score` needs it."""
        self._batch_tokens = batch_tokens
        self._temperature = temperature
        self._requester = Requester(
            server.endpoint,
            controller,
            budget or Budget(BudgetConfig(), None),
            max_attempts=_MAX_ATTEMPTS,
            max_refused_s=_MAX_REFUSED_S,
            max_outage_s=max_outage_s,
            on_outage=on_outage,
            hedge=hedge,
            stats=self.stats,
            effects=effects,
        )
        self._waiting: set[asyncio.Task[list[SequenceScores]]] = set()
        self._sending: set[asyncio.Task[_Answer]] = set()
        self._closing = False

    async def score(self, sequences: Sequence[TokenSequence]) -> list[SequenceScores]:
        """Return the scores of the scored tokens of each sequence.

        Sequences in the ledger are not sent, and equal ones are sent once. Batches go on after one has failed, so that
        what they are answered is kept. Raise RequestFailed if a sequence could not be scored, WrongAnswer if an answer
        does not hold the scores, StoreError and BudgetReached.
        """
        assert self.ledger is not None
        keys = [self.ledger.key(sequence) for sequence in sequences]
        known = self.ledger.find(keys)
        missing = {key: sequence for key, sequence in zip(keys, sequences, strict=True) if key not in known}
        self.stats.num_replayed_completions += len(known)
        tasks = [asyncio.create_task(self._score(batch)) for batch in self._batches(missing.values())]
        self._waiting.update(tasks)
        for task in tasks:
            task.add_done_callback(self._waiting.discard)
        answers = [scores for batch in await asyncio.gather(*tasks) for scores in batch]
        known.update(zip(missing, answers, strict=True))
        return [known[key] for key in keys]

    async def score_now(self, sequences: Sequence[TokenSequence], temperature: float) -> list[SequenceScores]:
        """Return scores past the ledger, in one request and with patience only for a busy server."""
        return (await self._ask_once(sequences, temperature)).scores

    async def spellings(self, sequence: TokenSequence) -> list[str | None]:
        """Return the texts that the server has for the tokens; None where it does not say. Patient as `score_now`."""
        answer = await self._ask_once([sequence], 1.0, spelt=True)
        return self._api.spellings(answer.body, sequence)

    async def aclose(self) -> None:
        """Wait for the requests on the wire and send nothing more; what waits to be sent is cancelled."""
        self._closing = True
        for task in self._waiting:
            task.cancel()
        await asyncio.gather(*self._waiting, *self._sending, return_exceptions=True)

    def _batches(self, sequences: Iterable[TokenSequence]) -> list[list[TokenSequence]]:
        batches: list[list[TokenSequence]] = []
        room = 0
        for sequence in sequences:
            if len(sequence.token_ids) > room or isinstance(sequence, GivenIds):
                batches.append([])
                room = self._batch_tokens
            batches[-1].append(sequence)
            room -= len(sequence.token_ids)
        return batches

    async def _score(self, batch: Sequence[TokenSequence]) -> list[SequenceScores]:
        def is_halved(failure: Failure) -> bool:
            return len(batch) > 1 and failure.kind in _HALVED and not failure.unreachable

        try:
            answer = await self._requester.ask(
                partial(self._send_and_keep, batch), size=_size(batch), is_final=is_halved
            )
        except RequestFailed as failed:
            if not is_halved(failed.failure):
                raise
            logger.warning(
                "a teacher's server failed for %d sequences, which are sent by halves: %s",
                len(batch),
                failed.failure.message,
            )
        else:
            return answer.scores
        middle = len(batch) // 2
        return await self._score(batch[:middle]) + await self._score(batch[middle:])

    async def _ask_once(
        self, sequences: Sequence[TokenSequence], temperature: float, *, spelt: bool = False
    ) -> _Answer:
        """Wait for a server that has too much to do or still loads; any other failure is raised at once."""

        def is_final(failure: Failure) -> bool:
            return failure.kind is not FailureKind.RATE and failure.status != HTTPStatus.SERVICE_UNAVAILABLE

        send = partial(self._post, sequences, temperature, spelt=spelt)
        return await self._requester.ask(send, size=_size(sequences), is_final=is_final)

    async def _send_and_keep(self, batch: Sequence[TokenSequence]) -> _Answer:
        """Make one attempt, whose answer is kept even if its caller is cancelled, as it was paid for."""
        sending = asyncio.create_task(self._post_and_keep(batch))
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)
        try:
            return await asyncio.shield(sending)
        except asyncio.CancelledError:
            if not self._closing:  # a copy of the request has answered
                sending.cancel()
            raise

    async def _post_and_keep(self, batch: Sequence[TokenSequence]) -> _Answer:
        answer = await self._post(batch, self._temperature)
        assert self.ledger is not None
        self.ledger.put(
            {self.ledger.key(sequence): scores for sequence, scores in zip(batch, answer.scores, strict=True)}
        )
        return answer

    async def _post(self, sequences: Sequence[TokenSequence], temperature: float, *, spelt: bool = False) -> _Answer:
        first, api = sequences[0], self._api
        if isinstance(first, GivenIds):
            api = GivenIdsApi(self._server.endpoint.model, top_k=first.ids_NK.shape[1])
        answer = await self._server.send(api.path, api.body(sequences, temperature, spelt=spelt))
        body = answer.body()
        if isinstance(body, str):
            message = f"HTTP 200, but its body is no JSON: {body[:_SHOWN_CHARACTERS] or 'nothing'}"
            raise RequestFailed(Failure(FailureKind.TRANSIENT, message, 200))
        scores = [] if spelt else api.scores(body, sequences)
        return _Answer(body, self._turn(body, answer, sequences), answer.limits, scores)

    def _turn(self, body: Any, answer: HttpAnswer, sequences: Sequence[TokenSequence]) -> Turn:
        usage = read_usage(body.get("usage")) if isinstance(body, dict) else {}
        if "prompt_tokens" not in usage or "completion_tokens" not in usage:
            usage = {"prompt_tokens": sum(len(sequence.token_ids) for sequence in sequences), "completion_tokens": 0}
        return Turn("stop", usage, answer.latency_s, self._server.endpoint.model)


def _size(sequences: Sequence[TokenSequence]) -> RequestSize:
    """Return the size of one request, in which a token counts as a character: how many there are is known."""
    return RequestSize(sum(len(sequence.token_ids) for sequence in sequences), max_tokens=len(sequences))
