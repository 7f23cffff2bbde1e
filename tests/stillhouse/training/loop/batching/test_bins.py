from hypothesis import given
from hypothesis import strategies as st

from stillhouse.training.loop.batching.bins import best_fit_decreasing


@given(st.lists(st.integers(1, 60), max_size=60), st.integers(20, 80))
def test_every_item_is_in_one_bin_and_no_bin_overflows(sizes: list[int], capacity: int):
    bins = best_fit_decreasing(sizes, capacity)
    assert sorted(index for group in bins for index in group) == list(range(len(sizes)))
    for group in bins:
        assert len(group) == 1 or sum(sizes[index] for index in group) <= capacity


@given(st.lists(st.sets(st.integers(1, 59), max_size=5), min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_bins_are_nearly_as_few_as_possible(cuts: list[set[int]], chance):
    # Full bins cut into pieces: no fewer can hold them.
    sizes = [
        after - before
        for inner in cuts
        for before, after in zip([0, *sorted(inner)], [*sorted(inner), 60], strict=True)
    ]
    chance.shuffle(sizes)
    assert len(best_fit_decreasing(sizes, 60)) <= 11 / 9 * len(cuts) + 6 / 9


def test_an_item_goes_where_it_leaves_the_least_room():
    assert best_fit_decreasing([3, 7, 6, 4], 10) == [[1, 0], [2, 3]]
    assert best_fit_decreasing([3, 6, 5, 4, 2], 10) == [[1, 3], [2, 0, 4]]


def test_equal_items_keep_their_order():
    assert best_fit_decreasing([2, 2, 2, 2], 4) == [[0, 1], [2, 3]]


def test_an_item_above_the_capacity_is_alone():
    assert best_fit_decreasing([50, 1, 9], 10) == [[0], [2, 1]]


def test_no_items_need_no_bin():
    assert best_fit_decreasing([], 10) == []
