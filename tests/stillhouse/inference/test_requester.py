import asyncio
import itertools
import random
from dataclasses import replace

import pytest

from stillhouse.config import BudgetConfig
from stillhouse.errors import BudgetReached, EndpointError
from stillhouse.inference import Controller, Endpoint, RolloutStats
from stillhouse.inference.budget import Budget, Spend
from stillhouse.inference.completion import Completion
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.inference.price import Price
from stillhouse.inference.rate_limit import Caps, RateControl, RequestSize
from stillhouse.inference.requester import Requester
from stillhouse.inference.retry import Effects
from stillhouse.types import TokenUsage, Turn

USAGE: TokenUsage = {"prompt_tokens": 7, "completion_tokens": 2}
ANSWER = Completion({"role": "assistant", "content": "hi"}, Turn("stop", USAGE, 0.1, "m"))
TRANSIENT = Failure(FailureKind.TRANSIENT, "HTTP 500: oops", 500)
REFUSED = Failure(FailureKind.TRANSIENT, "refused", unreachable=True)
ADDRESSES = itertools.count()
LIMITED = Failure(FailureKind.RATE, "HTTP 429: slow", 429, retry_after_s=0.0)


class Scripted:
    """A requester whose attempts go as scripted, in a world that only writes down how long it was to wait."""

    def __init__(
        self,
        *script: Failure | Completion,
        max_attempts: int = 3,
        max_outage_s: float = 0.0,
        max_budget_tokens: int = 10**6,
        price: Price | None = None,
    ) -> None:
        self.script = list(script)
        self.waits: list[float] = []
        self.slots_while_asleep: list[int] = []
        self.stats = RolloutStats()
        self.controller = Controller(RateControl(2, Caps(2)))
        self.outages: list[float | None] = []
        self.effects = Effects(lambda: sum(self.waits), self.sleep, random.Random(0))
        self.budget = Budget(BudgetConfig(max_tokens=max_budget_tokens), price)
        self.requester = Requester(
            Endpoint(f"http://here/v1/{next(ADDRESSES)}", "m", "m"),
            self.controller,
            self.budget,
            max_attempts=max_attempts,
            max_outage_s=max_outage_s,
            on_outage=self.outages.append,
            hedge=True,
            stats=self.stats,
            effects=self.effects,
        )

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.slots_while_asleep.append(self.controller.snapshot().in_flight)

    async def send(self) -> Completion:
        step = self.script.pop(0)
        if isinstance(step, Failure):
            raise RequestFailed(step)
        return step

    def ask(self) -> Completion:
        size = RequestSize(prompt_characters=100, max_tokens=50)
        return asyncio.run(self.requester.ask(self.send, size=size))


def test_what_a_request_without_a_known_cost_can_have_cost_is_kept_apart_from_what_answers_cost() -> None:
    scripted = Scripted(TRANSIENT, Failure(FailureKind.STALL, "hung"), ANSWER, price=Price(1.0, 2.0))
    scripted.ask()
    # What was refused cost nothing; the one that hung may have been answered. The last one told no cost.
    assert scripted.stats.possible_usd == pytest.approx(2 * (164 * 1.0 + 50 * 2.0) / 1e6)


def test_passing_failures_are_tried_again_with_the_slot_free() -> None:
    scripted = Scripted(TRANSIENT, Failure(FailureKind.STALL, "hung"), ANSWER)
    assert scripted.ask() is ANSWER
    assert len(scripted.waits) == 2
    assert scripted.slots_while_asleep == [0, 0]
    assert scripted.stats.retries == {FailureKind.TRANSIENT: 1, FailureKind.STALL: 1}
    assert (scripted.stats.num_requests, scripted.stats.num_completions) == (3, 1)


MALFORMED = Failure(FailureKind.MALFORMED, "no call", 400)
GONE = Failure(FailureKind.PERMANENT, "HTTP 404: hm", 404)


@pytest.mark.parametrize(
    ("script", "num_left"),
    [
        ([TRANSIENT, TRANSIENT, TRANSIENT, ANSWER], 1),
        ([MALFORMED, MALFORMED, ANSWER], 1),
        ([Failure(FailureKind.PERMANENT, "HTTP 400: no", 400), ANSWER], 1),
        ([Failure(FailureKind.CONTENT, "HTTP 400: no", 400), ANSWER], 1),
        ([REFUSED, TRANSIENT, REFUSED], 0),
    ],
    ids=["attempts end", "not read twice", "wrong", "filtered", "there in between"],
)
def test_one_request_fails_for_good_and_the_run_goes_on(script: list[Failure | Completion], num_left: int) -> None:
    scripted = Scripted(*script)
    with pytest.raises(RequestFailed):
        scripted.ask()
    assert len(scripted.script) == num_left


def test_a_404_after_answers_concerns_one_request() -> None:
    scripted = Scripted(MALFORMED, ANSWER, GONE)
    assert scripted.ask() is ANSWER
    with pytest.raises(RequestFailed):
        scripted.ask()


def test_where_no_provider_takes_tools_the_models_name_is_not_blamed() -> None:
    scripted = Scripted(Failure(FailureKind.PERMANENT, "HTTP 404: No endpoints found that support tool use.", 404))
    with pytest.raises(EndpointError, match="tools"):
        scripted.ask()


def test_being_rate_limited_costs_no_attempt() -> None:
    scripted = Scripted(*[LIMITED] * 4, TRANSIENT, TRANSIENT, ANSWER)
    assert scripted.ask() is ANSWER
    assert scripted.stats.num_rate_limited == 4
    assert len(scripted.waits) == 2


def test_an_endpoint_that_answered_before_is_waited_for() -> None:
    scripted = Scripted(ANSWER, TRANSIENT, *[REFUSED] * 20, TRANSIENT, ANSWER, max_outage_s=600)
    scripted.ask()
    assert scripted.ask() is ANSWER
    assert max(scripted.waits) <= 10
    *seconds, over = scripted.outages
    assert over is None
    assert len(seconds) == 20
    assert seconds == sorted(map(float, seconds))  # type: ignore[arg-type]


def test_an_outage_is_waited_for_no_longer_than_allowed() -> None:
    scripted = Scripted(ANSWER, *[REFUSED] * 1000, max_outage_s=60)
    scripted.ask()
    scripted.waits.append(1.0)
    with pytest.raises(EndpointError, match="60 s"):
        scripted.ask()
    assert 61 < sum(scripted.waits) < 81


@pytest.mark.parametrize("has_answered", [True, False])
def test_nobody_there_on_every_try_stops_the_run(has_answered: bool) -> None:
    scripted = Scripted(*[ANSWER] * has_answered, *[REFUSED] * 3, max_outage_s=0 if has_answered else 600)
    if has_answered:
        scripted.ask()
        scripted.waits.append(1.0)
    with pytest.raises(EndpointError, match=r"http://here/v1.* 3 tries"):
        scripted.ask()


def test_an_endpoint_that_never_answers_well_stops_the_run_before_all_prompts_are_spent() -> None:
    scripted = Scripted(*[TRANSIENT] * 100, max_attempts=1)
    for _ in range(19):
        with pytest.raises(RequestFailed):
            scripted.ask()
    with pytest.raises(EndpointError, match="20 requests"):
        scripted.ask()


@pytest.mark.parametrize(
    ("script", "counted", "possibly"),
    [
        ([ANSWER], Spend(1, 9, None), Spend(0, 0, None)),
        ([TRANSIENT, ANSWER], Spend(2, 9, None), Spend(0, 0, None)),
        ([REFUSED, ANSWER], Spend(2, 9, None), Spend(0, 0, None)),
        ([Failure(FailureKind.STALL, "hung"), ANSWER], Spend(2, 223, None), Spend(1, 214, None)),
        ([Failure(FailureKind.TRANSIENT, "cut", 200), ANSWER], Spend(2, 223, None), Spend(1, 214, None)),
    ],
    ids=["answered", "refused", "nobody there", "silent", "cut on the way back"],
)
def test_what_requests_may_cost_is_counted(script: list[Failure | Completion], counted: Spend, possibly: Spend) -> None:
    scripted = Scripted(*script)
    scripted.ask()
    assert scripted.budget.counted == counted
    ledger = scripted.budget.ledger
    assert (ledger.possible.spend(usd_known=ledger.usd_known), ledger.reserved.requests) == (possibly, 0)


def test_a_request_that_the_budget_does_not_hold_is_not_sent() -> None:
    scripted = Scripted(ANSWER, max_budget_tokens=60)
    with pytest.raises(BudgetReached, match=r"budget\.max_tokens"):
        scripted.ask()
    assert scripted.script == [ANSWER]


async def num_sent(endpoint: Endpoint, answer: Completion) -> int:
    """Return how often a request is sent that is answered late, after others that were answered at once."""
    limited, budget = Controller(RateControl(2, Caps(2))), Budget(BudgetConfig(), None)
    requester = Requester(
        endpoint, limited, budget, max_attempts=1, hedge=True, stats=RolloutStats(), effects=Effects()
    )
    calls = itertools.count()

    async def send() -> Completion:
        await asyncio.sleep(2.3 if next(calls) == 16 else 0.0)
        return answer

    for _ in range(17):
        await requester.ask(send, size=RequestSize(100, 50))
    return next(calls) - 16


def test_an_overdue_request_is_sent_twice_only_where_that_costs_nothing() -> None:
    free = Endpoint("http://here/v1", "m", "m")
    paid = replace(ANSWER, turn=replace(ANSWER.turn, cost_usd=0.1))
    cases = [
        (free, ANSWER),
        (free, paid),
        (replace(free, price=Price(1.0, 2.0)), ANSWER),
        (replace(free, capacity=8), ANSWER),
    ]

    async def count() -> list[int]:
        return await asyncio.gather(*(num_sent(*case) for case in cases))

    assert asyncio.run(count()) == [2, 1, 1, 1]
