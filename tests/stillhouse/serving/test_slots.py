import torch

from stillhouse.serving.slots import SlotCache


def states(*rows: list[float]) -> torch.Tensor:
    """[batch, 1 head, tokens, 1]"""
    return torch.tensor(rows)[:, None, :, None]


def test_new_states_go_behind_what_each_slot_holds_and_padding_goes_nowhere() -> None:
    cache = SlotCache(1, torch.device("cpu"))
    cache.reserve(2, 4)
    cache.aim(0, [0, 0], [1, 3])
    cache.update(states([-1, -1, 1], [4, 5, 6]), states([-1, -1, 1], [4, 5, 6]), 0)
    cache.aim(0, [1, 3], [1, 1])
    keys, values = cache.update(states([2], [7]), states([2], [7]), 0)
    assert keys.shape == (2, 1, 4, 1)
    assert keys[0, 0, :2, 0].tolist() == [1, 2]
    assert keys[1, 0, :, 0].tolist() == [4, 5, 6, 7]
    assert torch.equal(keys, values)
    assert not (keys == -1).any()


def test_growing_keeps_what_is_held() -> None:
    cache = SlotCache(2, torch.device("cpu"))
    cache.reserve(1, 2)
    cache.aim(0, [0], [2])
    for layer in range(2):
        cache.update(states([1, 2]), states([3, 4]), layer)
    cache.reserve(5, 5000)
    assert (cache.num_slots, cache.num_columns) == (5, 5000)
    for layer in cache.layers:
        assert layer.keys[0, :2, 0, 0].tolist() == [1, 2]
        assert layer.values[0, :2, 0, 0].tolist() == [3, 4]


def test_a_forward_pass_may_touch_slots_from_the_middle_only() -> None:
    cache = SlotCache(1, torch.device("cpu"))
    cache.reserve(3, 2)
    cache.aim(0, [0, 0, 0], [1, 1, 1])
    cache.update(states([1], [2], [3]), states([1], [2], [3]), 0)
    cache.aim(1, [0, 1], [1, 1])
    keys, _ = cache.update(states([8], [9]), states([8], [9]), 0)
    assert keys[:, 0, :, 0].tolist() == [[8, 0], [3, 9]]
    assert cache.layers[0].keys[0, 0].item() == 1


def test_buffers_grow_no_further_than_the_longest_sequence_needs() -> None:
    cache = SlotCache(1, torch.device("cpu"))
    cache.longest = 640
    cache.reserve(1, 10)
    assert cache.num_columns == 640
    cache.longest = 5000
    cache.reserve(1, 700)
    assert cache.num_columns == 1280
    cache.longest = 1300
    cache.reserve(1, 1290)
    assert cache.num_columns == 1300


def test_a_packed_row_writes_to_any_slots_and_sees_all_places() -> None:
    cache = SlotCache(1, torch.device("cpu"))
    cache.longest = 4
    cache.reserve(2, 4)
    cache.aim_at_whole(torch.tensor([0, 1, 6]))
    keys, values = cache.update(states([1, 2, 7]), states([1, 2, 7]), 0)
    assert keys[0, 0, :, 0].tolist() == [1, 2, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0]
    assert torch.equal(keys, values)
    assert keys[0].transpose(0, 1).is_contiguous()


def test_states_are_kept_in_the_type_that_attention_computes_in() -> None:
    cache = SlotCache(1, torch.device("cpu"))
    cache.reserve(1, 4)
    cache.aim(0, [0], [2])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        keys, values = cache.update(states([1, 2]), states([3, 4]).bfloat16(), 0)
    assert (keys.dtype, values.dtype) == (torch.bfloat16, torch.bfloat16)
