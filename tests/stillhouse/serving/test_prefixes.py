import pytest
import torch

from stillhouse.serving.prefixes import SlotTable
from stillhouse.serving.slots import SlotCache

WIDTH = 8


@pytest.fixture
def cache() -> SlotCache:
    """One layer, three slots; slot s holds the number 10 * s + column in every column."""
    cache = SlotCache(1, torch.device("cpu"))
    cache.reserve(3, WIDTH)
    cache.aim(0, [0, 0, 0], [WIDTH] * 3)
    states = torch.tensor([[10.0 * slot + column for column in range(WIDTH)] for slot in range(3)])[:, None, :, None]
    cache.update(states, -states, 0)
    return cache


def held(cache: SlotCache, slot: int, length: int) -> list[float]:
    return cache.layers[0].keys[slot, :length, 0, 0].tolist()


def test_the_longest_parked_sequence_that_the_prompt_continues_is_brought_to_its_slot(cache: SlotCache) -> None:
    table = SlotTable(cache)
    table.park(2, [5, 6, 7])
    table.park(1, [5, 6])
    assert table.reusable([5, 6, 7, 8]) == 3
    assert table.take(0, [5, 6, 7, 8]) == 3
    assert held(cache, 0, 3) == [20.0, 21.0, 22.0]
    assert table.reusable([5, 6, 9]) == 2, "the other one is still parked"


@pytest.mark.parametrize("prompt", [[5], [9, 5, 6, 7, 8], [5, 6, 8, 7]])
def test_a_sequence_that_goes_another_way_is_not_used(cache: SlotCache, prompt: list[int]) -> None:
    table = SlotTable(cache)
    table.park(2, [5, 6, 7])
    assert table.reusable(prompt) == 0
    assert table.take(0, prompt) == 0


@pytest.mark.parametrize(("slot", "prompt"), [(0, [5, 6, 7]), (2, [5, 6, 7]), (0, [5, 6])])
def test_of_a_longer_parked_sequence_the_start_is_used_but_for_the_last_token(
    cache: SlotCache, slot: int, prompt: list[int]
) -> None:
    table = SlotTable(cache)
    table.park(2, [5, 6, 7])
    used = len(prompt) - 1
    assert table.take(slot, prompt) == used
    assert held(cache, slot, used) == [20.0 + column for column in range(used)]
    assert table.reusable([5, 6, 7, 8]) == (0 if slot == 2 else 3), "parked on, unless it lay where the prompt goes"


def test_a_running_sequence_of_the_same_prompt_is_copied(cache: SlotCache) -> None:
    table = SlotTable(cache)
    assert table.take(2, [5, 6, 7], running=[[5, 9, 7], [5, 6, 7]]) == 2
    assert held(cache, 2, 2) == [10.0, 11.0]
    assert held(cache, 1, 3) == [10.0, 11.0, 12.0]


def test_what_lies_in_a_needed_slot_moves_to_a_free_one(cache: SlotCache) -> None:
    table = SlotTable(cache)
    table.park(1, [5, 6])
    table.take(1, [1, 2])
    assert held(cache, 2, 2) == [10.0, 11.0]
    assert table.take(2, [5, 6, 7]) == 2


def test_without_a_free_slot_the_one_parked_longest_gives_way(cache: SlotCache) -> None:
    table = SlotTable(cache)
    table.park(2, [8, 8])
    table.park(1, [5, 6])
    table.take(1, [1, 2])
    assert (table.reusable([8, 8, 8]), table.reusable([5, 6, 7])) == (0, 2)
    assert held(cache, 2, 2) == [10.0, 11.0]


def test_forgotten_slots_match_nothing(cache: SlotCache) -> None:
    table = SlotTable(cache)
    table.park(2, [5, 6, 7])
    table.forget()
    assert table.reusable([5, 6, 7, 8]) == 0
