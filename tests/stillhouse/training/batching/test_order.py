from collections import Counter

import pytest

from stillhouse.training.batching.order import distinct_rows, num_stream_steps, stream_rows


@pytest.mark.parametrize(("batch_size", "num_rows", "num_epochs"), [(4, 10, 3), (32, 10, 4), (5, 5, 2), (7, 1, 3)])
def test_every_row_comes_once_an_epoch(batch_size: int, num_rows: int, num_epochs: int):
    num_steps = num_stream_steps(batch_size, num_rows, num_epochs)
    batches = [stream_rows(step, batch_size, num_rows, num_epochs, seed=0) for step in range(num_steps)]
    flat = [row for batch in batches for row in batch]
    assert Counter(flat) == Counter(dict.fromkeys(range(num_rows), num_epochs))
    assert sorted(flat[:num_rows]) == list(range(num_rows))
    assert all(len(batch) == batch_size for batch in batches[:-1])


def test_epochs_and_seeds_have_orders_of_their_own():
    first, second = (stream_rows(step, 20, 20, 2, seed=0) for step in (0, 1))
    assert first != second
    assert first != stream_rows(0, 20, 20, 2, seed=1)


def test_a_step_gives_the_same_rows_whatever_was_asked_before():
    alone = stream_rows(7, 4, 10, 3, seed=5)
    [stream_rows(step, 4, 10, 3, seed=5) for step in range(7)]
    assert stream_rows(7, 4, 10, 3, seed=5) == alone


def test_distinct_rows_do_not_repeat_within_a_step():
    for step in range(50):
        rows = distinct_rows(step, 4, 10, seed=0)
        assert len(set(rows)) == 4
    assert not set(distinct_rows(0, 4, 10, seed=0)) & set(distinct_rows(1, 4, 10, seed=0))
