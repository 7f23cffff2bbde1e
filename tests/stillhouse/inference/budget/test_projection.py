import random

import pytest

from stillhouse.inference.budget.projection import Series


def series_of(*figures: float) -> Series:
    series = Series()
    for figure in figures:
        series.add(figure)
    return series


def test_a_projection_adds_what_is_to_come_to_what_was_spent() -> None:
    projected = series_of(*[100.0, 200.0] * 10).project(120)
    assert projected.mean == pytest.approx(120 * 150)
    # s = 50 * sqrt(20 / 19); half = t * s * 100 * sqrt(1 / 100 + 1 / 20)
    assert projected.high - projected.mean == pytest.approx(2.1 * 51.2989 * 24.4949, rel=1e-4)
    assert projected.mean - projected.low == pytest.approx(projected.high - projected.mean)


def test_equal_figures_leave_no_doubt_and_when_all_is_done_it_is_what_was_spent() -> None:
    for projected, total in (
        (series_of(*[0.25] * 20).project(120), 30.0),
        (series_of(*map(float, range(30))).project(30), sum(range(30))),
    ):
        assert projected.low == projected.high == pytest.approx(total)


def test_the_interval_holds_the_true_total_about_as_often_as_it_says() -> None:
    rng = random.Random(0)
    held = 0
    for _ in range(400):
        figures = [rng.gauss(500.0, 100.0) for _ in range(200)]
        interval = series_of(*figures[:20]).project(200)
        held += interval.low <= sum(figures) <= interval.high
    assert 0.92 <= held / 400 <= 0.98
