import math

import pytest

from stillhouse.training.monitoring.best import BestValidation


def test_the_lowest_loss_is_the_best_and_the_first_of_equal_ones():
    best = BestValidation(None)
    assert [best.observe(step, loss) for step, loss in enumerate([3.0, 2.0, 2.5, 2.0, 1.0, math.nan], start=1)] == [
        True,
        True,
        False,
        False,
        True,
        False,
    ]
    assert (best.step, best.loss) == (5, 1.0)
    assert not best.is_exhausted


@pytest.mark.parametrize("losses", [[2.0, 2.0, 3.0], [math.nan, math.nan], [2.0, math.nan, math.nan]])
def test_patience_runs_out_after_so_many_validations_without_a_lower_loss(losses: list[float]):
    best = BestValidation(2)
    exhausted = []
    for step, loss in enumerate(losses):
        best.observe(step, loss)
        exhausted.append(best.is_exhausted)
    assert exhausted == [False] * (len(losses) - 1) + [True]


def test_a_lower_loss_gives_new_patience():
    best = BestValidation(2)
    for step, loss in enumerate([2.0, 3.0, 1.0, 3.0]):
        best.observe(step, loss)
    assert not best.is_exhausted


def test_patience_and_best_are_remembered_across_a_restart():
    best = BestValidation(3)
    for step, loss in enumerate([2.0, 1.0, 3.0, 3.0]):
        best.observe(step, loss)
    continued = BestValidation(3)
    continued.restore(best.state())
    assert (continued.step, continued.loss) == (1, 1.0)
    continued.observe(4, 3.0)
    assert continued.is_exhausted
