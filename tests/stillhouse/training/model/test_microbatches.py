import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stillhouse.training.model.microbatches import (
    Microbatch,
    best_fit_decreasing,
    collate,
    microbatch_groups,
)
from stillhouse.types import Sample

CPU = torch.device("cpu")
both_ways = pytest.mark.parametrize("packing", [False, True])


def sample(token_ids: list[int], targets: set[int], prompt_id: str = "p") -> Sample:
    return Sample(token_ids, [index in targets for index in range(len(token_ids))], prompt_id)


def collated(samples: list[Sample], packing: bool) -> Microbatch:
    return collate(samples, lambda s: {}, CPU, packing=packing)


@both_ways
def test_positions_predict_their_targets(packing: bool):
    batch = collated([sample([5, 6, 7, 8], {1, 3}), sample([9, 10], {1})], packing)
    assert batch.inputs_BT.flatten()[batch.target_places_N].tolist() == [5, 7, 9]
    assert batch.targets_N.tolist() == [6, 8, 10]


def test_packed_samples_stand_one_behind_the_other_each_from_position_zero():
    batch = collated([sample([5, 6, 7, 8], {3}), sample([9, 10, 11], {1, 2})], packing=True)
    assert batch.inputs_BT.tolist() == [[5, 6, 7, 9, 10]]
    assert batch.position_ids_BT.tolist() == [[0, 1, 2, 0, 1]]
    assert batch.segments is not None
    assert batch.segments.starts.tolist() == [0, 3, 5]
    assert batch.segments.starts.dtype is torch.int32
    assert (batch.segments.lengths, batch.segments.max_length) == ((3, 2), 3)
    assert batch.num_slots == 5


def test_padded_samples_stand_one_below_the_other():
    batch = collated([sample([5, 6, 7, 8], {3}), sample([9, 10, 11], {1, 2})], packing=False)
    assert batch.inputs_BT.tolist() == [[5, 6, 7], [9, 10, 0]]
    assert batch.position_ids_BT.tolist() == [[0, 1, 2], [0, 1, 2]]
    assert batch.segments is None
    assert batch.num_slots == 6


@both_ways
def test_inputs_end_where_nothing_is_predicted_any_more(packing: bool):
    assert collated([sample([5, 6, 7, 8, 9], {2})], packing).inputs_BT.tolist() == [[5, 6]]


@both_ways
def test_per_token_values_follow_their_tokens(packing: bool):
    samples = [sample([5, 6, 7], {2}, "listed"), sample([8, 9], {1}, "array")]
    values = {"listed": [0.0, 0.0, -1.5], "array": np.array([0.0, -2.5])}
    batch = collate(samples, lambda s: {"sampling": values[s.prompt_id]}, CPU, packing=packing)
    assert batch.values["sampling"].tolist() == [-1.5, -2.5]
    assert batch.values["sampling"].dtype is torch.float32


@pytest.mark.parametrize(
    ("bad", "values", "message"),
    [
        (sample([1, 2], {0, 1}, "abc"), [0.0, 0.0], "abc.*first token"),
        (sample([1, 2], set(), "abc"), [0.0, 0.0], "abc.*no token"),
        (Sample([1, 2], [False, True, True], "abc"), [0.0, 0.0], "abc.*2 tokens.*mask of 3"),
        (sample([1, 2], {1}, "abc"), None, "abc.*'sampling'"),
        (sample([1, 2], {1}, "abc"), [0.0], "abc.*2 tokens.*1 values"),
    ],
)
def test_bad_samples_are_refused_by_the_name_of_their_prompt(bad: Sample, values: list[float] | None, message: str):
    with pytest.raises(ValueError, match=message):
        collate([bad], lambda s: {"sampling": values}, CPU, packing=True)


def test_a_sample_of_arrays_has_the_microbatch_of_one_of_lists():
    listed = sample([5, 6, 7, 8], {1, 3})
    arrays = Sample(np.array(listed.token_ids, np.int32), np.array(listed.loss_mask), "p")  # type: ignore[arg-type]
    for packing in (False, True):
        one, other = collated([listed, arrays], packing), collated([listed, listed], packing)
        assert torch.equal(one.inputs_BT, other.inputs_BT)
        assert torch.equal(one.target_places_N, other.target_places_N)
        assert torch.equal(one.targets_N, other.targets_N)


def test_values_that_only_some_samples_have_are_refused():
    samples = [sample([1, 2], {1}, "abc"), sample([1, 2], {1}, "def")]
    with pytest.raises(ValueError, match=r"def.*'b'.*'a'"):
        collate(samples, lambda s: {"a" if s.prompt_id == "abc" else "b": [0.0, 0.0]}, CPU, packing=True)


@given(st.lists(st.tuples(st.integers(2, 40), st.integers(0, 39)), max_size=30), st.booleans())
def test_groups_hold_every_sample_with_a_target_once_and_respect_the_budget(shapes, packing: bool):
    samples = [sample(list(range(length)), {target}, str(n)) for n, (length, target) in enumerate(shapes) if target]
    nothing_to_learn = sample([1, 2, 3], set(), "nothing")
    groups = microbatch_groups([*samples, nothing_to_learn], 50, packing=packing)
    trained = [s.prompt_id for s in samples if any(s.loss_mask)]
    assert sorted(s.prompt_id for group in groups for s in group) == sorted(trained)
    for group in groups:
        assert len(group) == 1 or collated(group, packing).num_slots <= 50


@both_ways
def test_samples_of_different_partitions_share_no_group_though_they_would_fit(packing: bool):
    samples = [sample([1, 2, 3], {2}, name) for name in ("a1", "b1", "a2", "b2", "a3")]
    groups = microbatch_groups(samples, 50, packing=packing, partition=lambda s: s.prompt_id[0])
    assert [[s.prompt_id for s in group] for group in groups] == [["a1", "a2", "a3"], ["b1", "b2"]]


def test_packing_fills_what_rectangles_leave_empty():
    samples = [sample(list(range(length)), {length - 1}) for length in (41, 11, 31, 21)]
    num_inputs = {
        packing: [[len(s.token_ids) - 1 for s in group] for group in microbatch_groups(samples, 50, packing=packing)]
        for packing in (False, True)
    }
    assert num_inputs == {False: [[10, 20], [30], [40]], True: [[40, 10], [30, 20]]}


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


@pytest.mark.parametrize(
    ("sizes", "capacity", "bins"),
    [
        ([3, 7, 6, 4], 10, [[1, 0], [2, 3]]),
        ([3, 6, 5, 4, 2], 10, [[1, 3], [2, 0, 4]]),
        ([2, 2, 2, 2], 4, [[0, 1], [2, 3]]),
        ([50, 1, 9], 10, [[0], [2, 1]]),
        ([], 10, []),
    ],
    ids=["least room", "least room of three", "equal items in order", "above the capacity", "nothing"],
)
def test_an_item_goes_where_it_leaves_the_least_room(sizes: list[int], capacity: int, bins: list[list[int]]):
    assert best_fit_decreasing(sizes, capacity) == bins
