import asyncio
import json
import random
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from stillhouse.config import BudgetConfig
from stillhouse.errors import BudgetReached
from stillhouse.inference.budget import Budget
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.inference.model_server import ModelServer
from stillhouse.inference.rate_limit import Caps, Controller, RateControl
from stillhouse.inference.retry import Effects
from stillhouse.inference.scoring.ledger import ScoreLedger
from stillhouse.inference.scoring.scorer import Scorer
from stillhouse.inference.scoring.scores import SequenceScores
from stillhouse.inference.transport import HttpAnswer

OOM = Failure(FailureKind.TRANSIENT, "CUDA out of memory", 500)
LATE = Failure(FailureKind.STALL, "no answer within 1 s")
BAD = Failure(FailureKind.PERMANENT, "bad request", 400)
BUSY = Failure(FailureKind.RATE, "slow down", 429, retry_after_s=0.0)
LOADING = Failure(FailureKind.TRANSIENT, "loading", 503)
GONE = Failure(FailureKind.TRANSIENT, "connection refused", unreachable=True)
KEY = Failure(FailureKind.AUTH, "no key", 401)


@dataclass
class Tokens:
    token_ids: list[int]

    @property
    def loss_mask(self) -> list[bool]:
        return [False, *[True] * (len(self.token_ids) - 1)]


class Api:
    """The score of a token is its negative."""

    path = "/score"

    def body(self, sequences: Sequence[Any], temperature: float, *, spelt: bool = False) -> Any:
        return [sequence.token_ids for sequence in sequences]

    def scores(self, answer: Any, sequences: Sequence[Any]) -> list[SequenceScores]:
        return [SequenceScores([-token for token in ids[1:]]) for ids in answer]

    def spellings(self, answer: Any, sequence: Any) -> list[str | None]:
        return [str(token) for token in answer[0]]


class Server:
    """Answers with the request, and fails as it is told to; `sizes` lists the first token of each sequence it got."""

    root = "http://here"
    endpoint = Endpoint("http://here", "m", "m")

    def __init__(self, *failures: Failure, most_tokens: int = 10**6, bad: int | None = None) -> None:
        self.failures = list(failures)
        self.most_tokens = most_tokens
        self.bad = bad
        self.batches: list[list[int]] = []
        self.waits: list[float] = []
        self.hold: asyncio.Event | None = None

    async def send(self, path: str, body: list[list[int]]) -> HttpAnswer:
        self.batches.append([ids[0] for ids in body])
        if self.failures:
            raise RequestFailed(self.failures.pop(0))
        if sum(map(len, body)) > self.most_tokens:
            raise RequestFailed(OOM)
        if self.bad in self.batches[-1]:
            raise RequestFailed(BAD)
        if self.hold is not None:
            await self.hold.wait()
        return HttpAnswer(json.dumps(body).encode(), {}, 0.01, None)

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        await asyncio.sleep(0)


def scorer_of(server: Server, path: Path, batch_tokens: int = 100, **more: Any) -> Scorer:
    return Scorer(
        cast(ModelServer, server),
        Api(),
        ScoreLedger(path / "scores"),
        Controller(RateControl(1, Caps(1))),
        batch_tokens=batch_tokens,
        temperature=1.0,
        effects=Effects(lambda: 500.0 * len(server.batches), server.sleep, random.Random(0)),
        **more,
    )


def sequences(lengths: Sequence[int]) -> list[Tokens]:
    """Return sequences of these lengths, each told by its first token."""
    return [Tokens([number, *range(1, length)]) for number, length in enumerate(lengths)]


Score = Callable[..., list[SequenceScores]]


@pytest.fixture
def score(tmp_path: Path) -> Score:
    """Return what is scored of sequences of given lengths."""

    def score(server: Server, lengths: Sequence[int], **more: Any) -> list[SequenceScores]:
        async def main() -> list[SequenceScores]:
            async with aclosing(scorer_of(server, tmp_path, **more)) as scorer:
                return await scorer.score(sequences(lengths))

        return asyncio.run(main())

    return score


def expected(lengths: Sequence[int]) -> list[SequenceScores]:
    return [SequenceScores([-token for token in range(1, length)]) for length in lengths]


def test_batches_hold_so_many_tokens_and_a_longer_sequence_goes_alone(score: Score) -> None:
    server = Server()
    lengths = [40, 50, 20, 300, 10, 90]
    assert score(server, lengths, batch_tokens=100) == expected(lengths)
    assert server.batches == [[0, 1], [2], [3], [4, 5]]
    assert score(server, []) == []


@pytest.mark.parametrize("failure", [OOM, LATE, BAD], ids=["out of memory", "late", "refused"])
def test_a_batch_that_fails_is_cut_in_two(score: Score, failure: Failure) -> None:
    server = Server(failure)
    assert score(server, [2] * 5) == expected([2] * 5)
    assert server.batches == [[0, 1, 2, 3, 4], [0, 1], [2, 3, 4]]
    # Halves go on until the server has room.
    small = Server(most_tokens=10)
    assert score(small, [5, 6, 7, 8]) == expected([5, 6, 7, 8])
    assert small.batches[-2:] == [[2], [3]]


def test_one_sequence_that_is_refused_is_found_and_not_sent_again_while_the_others_are_kept(score: Score) -> None:
    server = Server(bad=3)
    with pytest.raises(RequestFailed, match="bad request"):
        score(server, [2] * 4)
    assert server.batches.count([3]) == 1
    assert not server.waits
    server.bad, server.batches = None, []
    assert score(server, [2] * 4) == expected([2] * 4)
    assert server.batches == [[3]]


@pytest.mark.parametrize(
    ("failure", "num_batches_in_all"), [(BUSY, 5), (GONE, 6)], ids=["busy for half an hour", "not there"]
)
def test_a_busy_or_absent_server_gets_the_same_batch_until_it_is_given_up(
    score: Score, failure: Failure, num_batches_in_all: int
) -> None:
    server = Server(failure, failure)
    assert score(server, [2, 2]) == expected([2, 2])
    assert server.batches == [[0, 1]] * 3
    server = Server(*[failure] * 99)
    with pytest.raises(RequestFailed, match=failure.message):
        score(server, [3, 3])
    assert len(server.batches) == num_batches_in_all


def test_a_refused_key_ends_it_at_once_and_what_the_budget_does_not_hold_is_not_sent(score: Score) -> None:
    server = Server(KEY)
    with pytest.raises(RequestFailed, match="no key"):
        score(server, [2, 2])
    assert len(server.batches) == 1
    server = Server()
    with pytest.raises(BudgetReached, match=r"budget\.max_tokens"):
        score(server, [50, 50], budget=Budget(BudgetConfig(max_tokens=100), None))
    assert server.batches == []


def test_before_the_training_only_a_busy_server_is_waited_for(tmp_path: Path) -> None:
    async def ask(server: Server) -> list[SequenceScores]:
        async with aclosing(scorer_of(server, tmp_path)) as scorer:
            return await scorer.score_now(sequences([3]), 1.0)

    server = Server(BUSY, LOADING)
    assert asyncio.run(ask(server)) == expected([3])
    assert len(server.waits) == 1
    with pytest.raises(RequestFailed, match="out of memory"):
        asyncio.run(ask(Server(OOM)))


def test_closing_waits_for_what_is_on_the_wire_keeps_it_and_sends_nothing_more(tmp_path: Path) -> None:
    server = Server()

    async def main() -> None:
        server.hold = asyncio.Event()
        scorer = scorer_of(server, tmp_path, batch_tokens=1)
        scoring = asyncio.create_task(scorer.score(sequences([2, 2])))
        while not server.batches:
            await asyncio.sleep(0.001)
        closing = asyncio.create_task(scorer.aclose())
        await asyncio.sleep(0.01)
        assert not closing.done()
        server.hold.set()
        await closing
        with suppress(asyncio.CancelledError):
            await scoring

    asyncio.run(main())
    assert server.batches == [[0]]

    async def again() -> list[SequenceScores]:
        return await scorer_of(server, tmp_path).score(sequences([2, 2]))

    server.hold = None
    assert asyncio.run(again()) == expected([2, 2])
    assert server.batches == [[0], [1]]
