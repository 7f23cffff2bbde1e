from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillhouse.training.loop.row_order import Mixture, distinct_rows


def all_rows(mixture: Mixture) -> list[int]:
    return [row for step in range(mixture.num_steps) for row in mixture.rows(step)]


@pytest.mark.parametrize(("batch_size", "num_rows", "num_epochs"), [(4, 10, 3), (32, 10, 4), (5, 5, 2), (7, 1, 3)])
def test_every_row_of_one_source_comes_once_an_epoch(batch_size: int, num_rows: int, num_epochs: int):
    mixture = Mixture((num_rows,), (1.0,), batch_size, num_epochs, seed=0)
    batches = [mixture.rows(step) for step in range(mixture.num_steps)]
    flat = [row for batch in batches for row in batch]
    assert Counter(flat) == Counter(dict.fromkeys(range(num_rows), num_epochs))
    assert sorted(flat[:num_rows]) == list(range(num_rows))
    assert all(len(batch) == batch_size for batch in batches[:-1])


@settings(max_examples=60)
@given(
    sources=st.lists(st.tuples(st.integers(1, 12), st.floats(0.05, 3.0)), min_size=1, max_size=3),
    batch_size=st.integers(1, 9),
    num_epochs=st.integers(1, 6),
)
def test_each_epoch_holds_the_share_of_each_source_and_rows_come_equally_often(
    sources: list[tuple[int, float]], batch_size: int, num_epochs: int
):
    num_rows, weights = zip(*sources, strict=True)
    mixture = Mixture(num_rows, weights, batch_size, num_epochs, seed=1)
    flat = all_rows(mixture)
    shares = [max(1, round(weight * rows)) for rows, weight in sources]
    assert mixture.epoch_rows == sum(shares)
    for epoch in range(num_epochs):
        first = 0
        for rows, share in zip(num_rows, shares, strict=True):
            held = flat[epoch * sum(shares) : (epoch + 1) * sum(shares)]
            assert sum(first <= row < first + rows for row in held) == share
            first += rows
    times = Counter(flat)
    first = 0
    for rows in num_rows:
        of_source = [times[row] for row in range(first, first + rows)]
        assert max(of_source) - min(of_source) <= 1
        first += rows


def test_a_source_of_half_a_pass_gives_its_other_half_in_the_next_epoch():
    mixture = Mixture((4, 10), (1.0, 0.5), 9, 2, seed=0)
    first, second = ({row for row in mixture.rows(epoch) if row >= 4} for epoch in (0, 1))
    assert first | second == set(range(4, 14))
    assert not first & second
    assert first != set(range(4, 9))


def test_epochs_and_seeds_have_orders_of_their_own():
    mixture = Mixture((20,), (1.0,), 20, 2, seed=0)
    assert mixture.rows(0) != mixture.rows(1)
    assert mixture.rows(0) != Mixture((20,), (1.0,), 20, 2, seed=1).rows(0)


def test_a_step_gives_the_same_rows_whatever_was_asked_before():
    mixture = Mixture((10, 7), (1.0, 0.3), 4, 3, seed=5)
    steps = [mixture.rows(step) for step in range(mixture.num_steps)]
    assert [mixture.rows(step) for step in reversed(range(mixture.num_steps))] == steps[::-1]


def test_epochs_are_counted_to_the_end_of_the_last():
    mixture = Mixture((10,), (1.0,), 4, 2, seed=0)
    assert [mixture.epochs_after(step) for step in (0, 1, 5)] == [0.0, 0.4, 2.0]
    assert mixture.epochs_after(mixture.num_steps) == 2.0


def test_distinct_rows_do_not_repeat_within_a_step():
    for step in range(50):
        rows = distinct_rows(step, 4, 10, seed=0)
        assert len(set(rows)) == 4
    assert not set(distinct_rows(0, 4, 10, seed=0)) & set(distinct_rows(1, 4, 10, seed=0))
