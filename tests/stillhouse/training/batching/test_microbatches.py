import pytest
import torch

from stillhouse.training.batching.microbatches import collate, num_targets, split_microbatches
from stillhouse.types import Sample

CPU = torch.device("cpu")


def sample(token_ids: list[int], targets: set[int], prompt_id: str = "p", **lists: list[float]) -> Sample:
    return Sample(token_ids, [index in targets for index in range(len(token_ids))], prompt_id, **lists)


def test_positions_predict_their_targets():
    samples = [sample([5, 6, 7, 8], {1, 3}), sample([9, 10], {1})]
    batch = collate(samples, CPU)
    flat_inputs = batch.inputs_BT.flatten()
    assert flat_inputs[batch.positions_N].tolist() == [5, 7, 9]
    assert batch.targets_N.tolist() == [6, 8, 10]


def test_inputs_end_where_nothing_is_predicted_any_more():
    assert collate([sample([5, 6, 7, 8, 9], {2})], CPU).inputs_BT.tolist() == [[5, 6]]


def test_per_token_values_follow_their_tokens():
    samples = [
        sample([5, 6, 7], {2}, sampling_logprobs=[0.0, 0.0, -1.5]),
        sample([8, 9], {1}, sampling_logprobs=[0.0, -2.5]),
    ]
    assert collate(samples, CPU).at_targets(lambda s: s.sampling_logprobs).tolist() == [-1.5, -2.5]


def test_missing_values_name_the_prompt():
    with pytest.raises(ValueError, match="prompt abc: 2 tokens but none"):
        collate([sample([1, 2], {1}, "abc")], CPU).at_targets(lambda s: s.sampling_logprobs)


def test_first_token_as_a_target_is_refused():
    with pytest.raises(ValueError, match="prompt abc: the first token"):
        collate([sample([1, 2], {0, 1}, "abc")], CPU)


def test_groups_hold_every_sample_with_a_target_once_and_respect_the_budget():
    samples = [sample(list(range(length)), {length - 1}) for length in (9, 3, 5, 40, 4, 8)]
    nothing_to_learn = sample([1, 2, 3], set())
    groups = split_microbatches([*samples, nothing_to_learn], 20)
    assert sorted(len(s.token_ids) for group in groups for s in group) == [3, 4, 5, 8, 9, 40]
    for group in groups:
        assert len(group) == 1 or len(group) * max(len(s.token_ids) for s in group) <= 20


def test_targets_are_counted_over_all_samples():
    assert num_targets([sample([1, 2, 3], {1, 2}), sample([1, 2], set())]) == 2
