import asyncio
import uuid

import pytest

from stillhouse.config import BudgetConfig
from stillhouse.errors import BudgetReached
from stillhouse.inference.budget import Spend, forget_budgets, remaining_budget, shared_budget

CONFIG = BudgetConfig(max_tokens=100)


def test_all_parts_of_a_run_spend_from_one_budget_and_other_runs_from_theirs() -> None:
    run, other = uuid.uuid4().hex, uuid.uuid4().hex
    shared_budget(run, "shard 0", CONFIG, None).count_replayed(Spend(1, 90))
    with pytest.raises(BudgetReached):
        asyncio.run(shared_budget(run, "shard 1", CONFIG, None).reserve(Spend(1, 20)))
    asyncio.run(shared_budget(other, "shard 1", CONFIG, None).reserve(Spend(1, 20)))


def test_a_part_asked_for_again_does_not_count_its_replays_twice() -> None:
    run = uuid.uuid4().hex
    for _ in range(3):
        shared_budget(run, "shard 0", CONFIG, None).count_replayed(Spend(1, 60))
    shared_budget(run, "shard 1", CONFIG, None).count_replayed(Spend(1, 10))
    assert shared_budget(run, "shard 0", CONFIG, None).snapshot().counted == Spend(2, 70, 0.0)


def test_a_run_that_is_forgotten_starts_anew() -> None:
    run = uuid.uuid4().hex
    shared_budget(run, "shard 0", CONFIG, None).count_replayed(Spend(1, 60))
    forget_budgets(run)
    assert shared_budget(run, "shard 0", CONFIG, None).snapshot().counted == Spend(0, 0, 0.0)


def test_another_process_of_a_run_may_spend_what_is_left() -> None:
    run = uuid.uuid4().hex
    caps = BudgetConfig(max_tokens=100, max_requests=2, max_hours=1.0)
    assert remaining_budget(run, caps) == BudgetConfig(max_tokens=100, max_requests=2)
    shared_budget(run, "shard 0", caps, None).count_replayed(Spend(2, 60))
    assert remaining_budget(run, caps) == BudgetConfig(max_tokens=40, max_requests=1)
    assert remaining_budget(run, BudgetConfig()) == BudgetConfig()
