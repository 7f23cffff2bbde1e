import random

import pytest

from stillhouse.config import BudgetConfig
from stillhouse.rollouts.budget import Budget, Spend
from stillhouse.rollouts.budget.projection import Series, student_t


@pytest.mark.parametrize(("freedom", "quantile"), [(19, 2.093024), (29, 2.045230), (60, 2.000298), (1000, 1.962339)])
def test_the_quantile_of_student_is_that_of_the_tables(freedom: int, quantile: float) -> None:
    assert student_t(0.95, freedom) == pytest.approx(quantile, abs=2e-5)


def test_a_projection_adds_what_is_to_come_to_what_was_spent() -> None:
    budget = Budget(BudgetConfig(), None)
    for index in range(20):
        budget.count_rollout(Spend(1, 100 if index % 2 else 200, 0.01))
    projection = budget.project(120)
    assert projection is not None
    assert projection.usd is not None
    assert projection.tokens.estimate == pytest.approx(120 * 150)
    # s = 50 * sqrt(20 / 19); half = t * s * 100 * sqrt(1 / 100 + 1 / 20)
    assert projection.tokens.high - projection.tokens.estimate == pytest.approx(2.093024 * 51.2989 * 24.4949, rel=1e-4)
    assert projection.usd.low == pytest.approx(1.2)
    assert projection.usd.high == pytest.approx(1.2)


def test_too_few_rollouts_give_no_projection() -> None:
    budget = Budget(BudgetConfig(), None)
    for _ in range(19):
        budget.count_rollout(Spend(1, 100, 0.01))
    assert budget.project(100) is None


def test_one_unknown_price_makes_the_projected_money_unknown() -> None:
    budget = Budget(BudgetConfig(), None)
    for index in range(25):
        budget.count_rollout(Spend(1, 100, None if index == 3 else 0.01))
    projection = budget.project(100)
    assert projection is not None
    assert projection.usd is None
    assert projection.tokens.estimate == 10_000


def test_when_all_is_done_the_projection_is_what_was_spent() -> None:
    budget = Budget(BudgetConfig(), None)
    for index in range(30):
        budget.count_rollout(Spend(1, index, 0.0))
    projection = budget.project(30)
    assert projection is not None
    assert projection.tokens.low == projection.tokens.high == pytest.approx(sum(range(30)))


def test_rollouts_replayed_to_a_collection_that_runs_again_are_taken_once() -> None:
    budget = Budget(BudgetConfig(), None)
    for _ in range(25):
        budget.count_rollout(Spend(1, 100, 0.0))
    budget.start_again()
    for _ in range(30):
        budget.count_rollout(Spend(1, 100, 0.0))
    projection = budget.project(100)
    assert projection is not None
    assert projection.num_done == 30


def test_the_interval_holds_the_true_total_about_as_often_as_it_says() -> None:
    rng = random.Random(0)
    held = 0
    for _ in range(400):
        figures = [rng.gauss(500.0, 100.0) for _ in range(200)]
        series = Series()
        for figure in figures[:20]:
            series.add(figure)
        interval = series.project(200)
        held += interval.low <= sum(figures) <= interval.high
    assert 0.92 <= held / 400 <= 0.98
