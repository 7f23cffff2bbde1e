import asyncio
import threading
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillhouse.config import BudgetConfig
from stillhouse.errors import BudgetReached
from stillhouse.inference.budget import (
    NOTHING,
    REFUSED,
    Budget,
    Spend,
    forget_budgets,
    remaining_budget,
    shared_budget,
    spend_of,
)
from stillhouse.inference.budget.spend import ZERO
from stillhouse.inference.price import Price
from stillhouse.types import Turn

PRICE = Price(1.0, 2.0)


def reserved(budget: Budget, worst: Spend) -> Spend:
    return asyncio.run(budget.reserve(worst))


@pytest.mark.parametrize(
    ("config", "worst", "field"),
    [
        (BudgetConfig(max_requests=2), Spend(1, 10, 0.1), "budget.max_requests"),
        (BudgetConfig(max_tokens=25), Spend(1, 10, 0.1), "budget.max_tokens"),
        (BudgetConfig(max_usd=0.25), Spend(1, 10, 0.1), "budget.max_usd"),
    ],
)
def test_requests_that_could_pass_a_cap_name_its_field(config: BudgetConfig, worst: Spend, field: str) -> None:
    budget = Budget(config, PRICE)
    budget.settle(reserved(budget, worst), worst)
    # Nothing is known of how this one ended, so its worst case counts, and the error says so.
    budget.settle(reserved(budget, worst), None)
    with pytest.raises(BudgetReached, match=rf"10 tokens and 0\.1 USD.*{field}"):
        reserved(budget, worst)


def test_what_was_reserved_and_not_spent_is_free_again() -> None:
    budget = Budget(BudgetConfig(max_tokens=100), None)
    for _ in range(20):
        budget.settle(reserved(budget, Spend(1, 80, None)), Spend(1, 1, None))
    assert budget.counted == Spend(20, 20, None)
    with pytest.raises(BudgetReached, match=r"20 of 100 tokens.* 81"):
        reserved(budget, Spend(1, 81, None))


def test_who_finds_no_room_waits_for_those_in_flight_and_goes_in_order() -> None:
    async def main() -> list[str]:
        budget = Budget(BudgetConfig(max_tokens=100), None)
        first = await budget.reserve(Spend(1, 90))
        order: list[str] = []

        async def ask(name: str, tokens: int) -> None:
            reservation = await budget.reserve(Spend(1, tokens))
            order.append(name)
            await asyncio.sleep(0)
            budget.settle(reservation, Spend(1, 1))

        tasks = [asyncio.create_task(ask(*pair)) for pair in (("large", 50), ("small", 5), ("late", 5))]
        await asyncio.sleep(0.01)
        # The small ones would fit beside the first, and still do not pass the large one.
        assert order == []
        budget.settle(first, Spend(1, 10))
        await asyncio.gather(*tasks)
        return order

    assert asyncio.run(main()) == ["large", "small", "late"]


def test_who_waits_is_refused_once_what_was_settled_leaves_no_room() -> None:
    async def main() -> None:
        budget = Budget(BudgetConfig(max_tokens=100), None)
        first = await budget.reserve(Spend(1, 60))
        waiting = asyncio.create_task(budget.reserve(Spend(1, 60)))
        small = asyncio.create_task(budget.reserve(Spend(1, 30)))
        await asyncio.sleep(0.01)
        budget.settle(first, Spend(1, 60))
        with pytest.raises(BudgetReached):
            await waiting
        budget.settle(await small, Spend(1, 30))

    asyncio.run(main())


def test_who_stops_waiting_makes_way_and_holds_nothing() -> None:
    async def main() -> None:
        budget = Budget(BudgetConfig(max_tokens=100), None)
        first = await budget.reserve(Spend(1, 60))
        waiting = asyncio.create_task(budget.reserve(Spend(1, 60)))
        behind = asyncio.create_task(budget.reserve(Spend(1, 40)))
        await asyncio.sleep(0.01)
        waiting.cancel()
        budget.settle(await behind, NOTHING)
        granted = asyncio.create_task(budget.reserve(Spend(1, 50)))
        await asyncio.sleep(0)
        budget.settle(first, NOTHING)
        # Its turn has come, and it stops before it hears of it.
        granted.cancel()
        await asyncio.gather(waiting, granted, return_exceptions=True)
        await asyncio.sleep(0.01)
        assert budget.ledger.reserved == ZERO

    asyncio.run(main())


def test_event_loops_of_several_threads_share_the_room_and_wake_each_other() -> None:
    budget = Budget(BudgetConfig(max_tokens=2000), None)
    most = 0

    async def ask() -> None:
        nonlocal most
        reservation = await budget.reserve(Spend(1, 100))
        most = max(most, budget.counted.tokens + budget.ledger.reserved.tokens)
        await asyncio.sleep(0.001)
        budget.settle(reservation, Spend(1, 10))

    async def many() -> None:
        async with asyncio.timeout(20):
            await asyncio.gather(*(ask() for _ in range(40)))

    threads = [threading.Thread(target=lambda: asyncio.run(many())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert budget.counted == Spend(160, 1600, 0.0)
    assert most <= 2000


def test_a_waiter_whose_event_loop_is_gone_blocks_nobody() -> None:
    budget = Budget(BudgetConfig(max_tokens=100), None)
    first = reserved(budget, Spend(1, 60))
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(budget.reserve(Spend(1, 100)))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    budget.settle(first, NOTHING)
    budget.settle(reserved(budget, Spend(1, 90)), NOTHING)
    assert not waiting.done()
    del waiting


@settings(max_examples=150)
@given(
    st.lists(
        st.tuples(st.integers(1, 60), st.floats(0, 0.6), st.floats(0, 1), st.integers(0, 4), st.booleans()), max_size=40
    )
)
def test_counted_and_reserved_never_pass_a_cap(requests: list[tuple[int, float, float, int, bool]]) -> None:
    async def main() -> None:
        budget = Budget(BudgetConfig(max_tokens=200, max_usd=1.0, max_requests=20), PRICE)

        def check() -> None:
            counted, reserved = budget.counted, budget.ledger.reserved.spend()
            assert counted.requests + reserved.requests <= 20
            assert counted.tokens + reserved.tokens <= 200
            assert counted.usd + reserved.usd <= 1.0 + 1e-9
            assert min(reserved.requests, reserved.tokens, reserved.usd) >= 0

        async def ask(tokens: int, usd: float, share: float, naps: int, has_usage: bool) -> None:
            try:
                reservation = await budget.reserve(Spend(1, tokens, usd))
            except BudgetReached:
                return
            check()
            for _ in range(naps):
                await asyncio.sleep(0)
            budget.settle(reservation, Spend(1, int(tokens * share), usd * share) if has_usage else None)
            check()

        async with asyncio.timeout(60):
            await asyncio.gather(*(ask(*request) for request in requests))
        assert budget.ledger.reserved == ZERO

    asyncio.run(main())


def test_an_answer_above_its_reservation_is_counted_as_it_is_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    budget = Budget(BudgetConfig(max_tokens=100), None)
    budget.settle(reserved(budget, Spend(1, 90, None)), Spend(1, 130, None))
    assert budget.counted.tokens == 130
    assert "40 tokens" in caplog.text
    with pytest.raises(BudgetReached, match="30 over"):
        reserved(budget, Spend(1, 1, None))


@pytest.mark.parametrize(
    ("spent", "counted", "possible"),
    [
        (Spend(1, 30, 0.01), Spend(1, 30, 0.01), Spend(0, 0, 0.0)),
        (None, Spend(1, 50, 0.02), Spend(1, 50, 0.02)),
        (Spend(1, 30, None), Spend(1, 30, 0.02), Spend(1, 0, 0.02)),
        (REFUSED, Spend(1, 0, 0.0), Spend(0, 0, 0.0)),
        (NOTHING, Spend(0, 0, 0.0), Spend(0, 0, 0.0)),
    ],
    ids=["usage told", "nothing known", "cost not known", "refused", "never sent"],
)
def test_each_end_of_a_request_is_counted_as_the_table_says(spent: Any, counted: Spend, possible: Spend) -> None:
    budget = Budget(BudgetConfig(max_usd=1.0), PRICE)
    budget.settle(reserved(budget, Spend(1, 50, 0.02)), spent)
    assert (budget.counted, budget.ledger.possible.spend()) == (counted, possible)


def test_wall_time_counts_while_something_is_collected_and_ends_the_run() -> None:
    now = 0.0
    budget = Budget(BudgetConfig(max_hours=1.0), None, clock=lambda: now)
    with budget.ledger.running():
        now = 1800.0
        with budget.ledger.running():
            now = 3000.0
    now = 90_000.0
    assert budget.ledger.wall_s() == 3000.0
    with budget.ledger.running():
        budget.settle(reserved(budget, Spend(1, 1, None)), NOTHING)
        now += 600.0
        with pytest.raises(BudgetReached, match=r"1 of 1 hours.*budget\.max_hours"):
            reserved(budget, Spend(1, 1, None))


def test_a_collection_that_runs_again_counts_what_is_replayed_to_it_once() -> None:
    budget = Budget(BudgetConfig(max_tokens=1000), None)
    budget.count_replayed(Spend(1, 100))
    budget.settle(reserved(budget, Spend(1, 50)), Spend(1, 40))
    budget.start_again()
    budget.count_replayed(Spend(1, 40))
    # A new answer in between is new.
    budget.settle(reserved(budget, Spend(1, 50)), Spend(1, 7))
    budget.count_replayed(Spend(1, 100))
    assert budget.counted == Spend(3, 147, 0.0)
    budget.count_replayed(Spend(1, 3))
    assert budget.counted == Spend(4, 150, 0.0)


def test_requests_that_failed_stand_for_no_replay() -> None:
    budget = Budget(BudgetConfig(max_requests=100), None)
    for spent in (REFUSED, REFUSED, Spend(1, 40), None):
        budget.settle(reserved(budget, Spend(1, 50)), spent)
    budget.start_again()
    budget.count_replayed(Spend(1, 40))
    budget.count_replayed(Spend(1, 10))
    assert budget.counted == Spend(5, 100, 0.0)


def test_each_part_reserves_by_the_price_of_its_own_model() -> None:
    budget = Budget(BudgetConfig(max_usd=1.0), PRICE)
    dear = budget.part(Price(10.0, 20.0))
    assert dear.worst_case(1000, 100).usd == pytest.approx(10 * (budget.worst_case(1000, 100).usd or 0.0))
    assert budget.part(None).worst_case(1000, 100).usd is None
    dear.settle(reserved(dear, Spend(1, 10, 0.9)), Spend(1, 10, 0.9))
    with pytest.raises(BudgetReached, match=r"0\.9 of 1 USD"):
        reserved(budget, Spend(1, 10, 0.2))


def test_the_worst_case_of_a_prompt_comes_closer_as_answers_tell_its_tokens() -> None:
    budget = Budget(BudgetConfig(), PRICE)
    first = budget.worst_case(4000, 500)
    assert first.tokens >= 4500
    assert first.usd == pytest.approx((first.tokens - 500 + 2 * 500) / 1e6)
    for _ in range(20):
        budget.ledger.prompt_tokens.learn(4000, 1000)
    learnt = budget.worst_case(4000, 500)
    assert 1500 < learnt.tokens < 2000
    budget.ledger.prompt_tokens.learn(4000, 3000)
    assert budget.worst_case(4000, 500).tokens > 3500


def test_a_turn_costs_what_the_endpoint_says_and_else_what_the_price_says() -> None:
    turn = Turn("stop", {"prompt_tokens": 10, "completion_tokens": 20}, 1.0, "m")
    assert spend_of(turn, PRICE) == Spend(1, 30, pytest.approx(50e-6))
    assert spend_of(turn, None) == Spend(1, 30, None)
    priced = Turn("stop", {"prompt_tokens": 10, "completion_tokens": 20}, 1.0, "m", cost_usd=0.5)
    assert spend_of(priced, PRICE) == Spend(1, 30, 0.5)
    assert spend_of(Turn("stop", {}, 1.0, "m"), PRICE) is None


SHARED_CAPS = BudgetConfig(max_tokens=100)


def test_parts_of_a_run_share_a_budget_count_replays_once_and_are_forgotten_together() -> None:
    run, other = uuid.uuid4().hex, uuid.uuid4().hex
    for _ in range(3):
        shared_budget(run, "shard 0", SHARED_CAPS, None).count_replayed(Spend(1, 60))
    shared_budget(run, "shard 1", SHARED_CAPS, None).count_replayed(Spend(1, 30))
    assert shared_budget(run, "shard 0", SHARED_CAPS, None).counted == Spend(2, 90, 0.0)
    with pytest.raises(BudgetReached):
        reserved(shared_budget(run, "shard 1", SHARED_CAPS, None), Spend(1, 20))
    reserved(shared_budget(other, "shard 1", SHARED_CAPS, None), Spend(1, 20))
    forget_budgets(run)
    assert shared_budget(run, "shard 0", SHARED_CAPS, None).counted == Spend(0, 0, 0.0)


def test_another_process_of_a_run_may_spend_what_is_left() -> None:
    run = uuid.uuid4().hex
    caps = BudgetConfig(max_tokens=100, max_requests=2, max_hours=1.0)
    assert remaining_budget(run, caps) == BudgetConfig(max_tokens=100, max_requests=2)
    shared_budget(run, "shard 0", caps, None).count_replayed(Spend(2, 60))
    assert remaining_budget(run, caps) == BudgetConfig(max_tokens=40, max_requests=1)
    assert remaining_budget(run, BudgetConfig()) == BudgetConfig()
