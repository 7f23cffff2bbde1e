import pytest
import torch

from stillhouse.serving.slots import SlotCache, SlotTable


def states(*rows: list[float]) -> torch.Tensor:
    """Return [batch, 1 head, tokens, 1]."""
    return torch.tensor(rows)[:, None, :, None]


def new_cache(num_slots: int = 1, num_columns: int = 4, *, longest: int | None = None) -> SlotCache:
    cache = SlotCache(1, torch.device("cpu"))
    cache.longest = longest
    cache.reserve(num_slots, num_columns)
    return cache


def test_new_states_go_behind_what_each_slot_holds_and_padding_goes_nowhere() -> None:
    cache = new_cache(2)
    cache.target_rows(0, [0, 0], [1, 3])
    cache.update(states([-1, -1, 1], [4, 5, 6]), states([-1, -1, 1], [4, 5, 6]), 0)
    cache.target_rows(0, [1, 3], [1, 1])
    keys, values = cache.update(states([2], [7]), states([2], [7]), 0)
    assert keys.shape == (2, 1, 4, 1)
    assert keys[0, 0, :2, 0].tolist() == [1, 2]
    assert keys[1, 0, :, 0].tolist() == [4, 5, 6, 7]
    assert torch.equal(keys, values)
    assert not (keys == -1).any()


def test_growing_keeps_what_is_held() -> None:
    cache = SlotCache(2, torch.device("cpu"))
    cache.reserve(1, 2)
    cache.target_rows(0, [0], [2])
    for layer in range(2):
        cache.update(states([1, 2]), states([3, 4]), layer)
    cache.reserve(5, 5000)
    assert (cache.num_slots, cache.num_columns) == (5, 5000)
    for layer in cache.layers:
        assert layer.keys[0, :2, 0, 0].tolist() == [1, 2]
        assert layer.values[0, :2, 0, 0].tolist() == [3, 4]


def test_a_forward_pass_may_touch_slots_from_the_middle_only() -> None:
    cache = new_cache(3, 2)
    cache.target_rows(0, [0, 0, 0], [1, 1, 1])
    cache.update(states([1], [2], [3]), states([1], [2], [3]), 0)
    cache.target_rows(1, [0, 1], [1, 1])
    keys, _ = cache.update(states([8], [9]), states([8], [9]), 0)
    assert keys[:, 0, :, 0].tolist() == [[8, 0], [3, 9]]
    assert cache.layers[0].keys[0, 0].item() == 1


def test_buffers_grow_no_further_than_the_longest_sequence_needs() -> None:
    cache = new_cache(1, 10, longest=640)
    assert cache.num_columns == 640
    cache.longest = 5000
    cache.reserve(1, 700)
    assert cache.num_columns == 1280
    cache.longest = 1300
    cache.reserve(1, 1290)
    assert cache.num_columns == 1300


def test_states_are_kept_in_the_type_that_attention_computes_in() -> None:
    cache = new_cache()
    cache.target_rows(0, [0], [2])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        keys, values = cache.update(states([1, 2]), states([3, 4]).bfloat16(), 0)
    assert (keys.dtype, values.dtype) == (torch.bfloat16, torch.bfloat16)


WIDTH = 8


@pytest.fixture
def cache() -> SlotCache:
    """Return one layer, three slots; slot s holds the number 10 * s + column in every column."""
    cache = new_cache(3, WIDTH)
    cache.target_rows(0, [0, 0, 0], [WIDTH] * 3)
    numbers = states(*([10.0 * slot + column for column in range(WIDTH)] for slot in range(3)))
    cache.update(numbers, -numbers, 0)
    return cache


@pytest.fixture
def table(cache: SlotCache) -> SlotTable:
    return SlotTable(cache)


def held(cache: SlotCache, slot: int, length: int) -> list[float]:
    return cache.layers[0].keys[slot, :length, 0, 0].tolist()


def test_the_longest_parked_sequence_that_the_prompt_continues_is_brought_to_its_slot(
    cache: SlotCache, table: SlotTable
) -> None:
    table.park(2, [5, 6, 7])
    table.park(1, [5, 6])
    assert table.best([5, 6, 7, 8])[1] == 3
    assert table.take(0, [5, 6, 7, 8]) == 3
    assert held(cache, 0, 3) == [20.0, 21.0, 22.0]
    assert table.best([5, 6, 9])[1] == 2, "the other one is still parked"


@pytest.mark.parametrize("prompt", [[5], [9, 5, 6, 7, 8], [5, 6, 8, 7]])
def test_a_sequence_that_goes_another_way_or_is_forgotten_is_not_used(table: SlotTable, prompt: list[int]) -> None:
    table.park(2, [5, 6, 7])
    assert table.best(prompt)[1] == 0
    assert table.take(0, prompt) == 0
    table.forget()
    assert table.best([5, 6, 7, 8])[1] == 0


@pytest.mark.parametrize(("slot", "prompt"), [(0, [5, 6, 7]), (2, [5, 6, 7]), (0, [5, 6])])
def test_of_a_longer_parked_sequence_the_start_is_used_but_for_the_last_token(
    cache: SlotCache, table: SlotTable, slot: int, prompt: list[int]
) -> None:
    table.park(2, [5, 6, 7])
    used = len(prompt) - 1
    assert table.take(slot, prompt) == used
    assert held(cache, slot, used) == [20.0 + column for column in range(used)]
    assert table.best([5, 6, 7, 8])[1] == (0 if slot == 2 else 3), "parked on, unless it lay where the prompt goes"


def test_a_running_sequence_of_the_same_prompt_is_copied(cache: SlotCache, table: SlotTable) -> None:
    assert table.take(2, [5, 6, 7], running=[[5, 9, 7], [5, 6, 7]]) == 2
    assert held(cache, 2, 2) == [10.0, 11.0]
    assert held(cache, 1, 3) == [10.0, 11.0, 12.0]


def test_what_lies_in_a_needed_slot_moves_to_a_free_one(cache: SlotCache, table: SlotTable) -> None:
    table.park(1, [5, 6])
    table.take(1, [1, 2])
    assert held(cache, 2, 2) == [10.0, 11.0]
    assert table.take(2, [5, 6, 7]) == 2


def test_without_a_free_slot_the_one_parked_longest_gives_way(cache: SlotCache, table: SlotTable) -> None:
    table.park(2, [8, 8])
    table.park(1, [5, 6])
    table.take(1, [1, 2])
    assert (table.best([8, 8, 8])[1], table.best([5, 6, 7])[1]) == (0, 2)
    assert held(cache, 2, 2) == [10.0, 11.0]
