import pytest

from benchmarks.on_policy.floor import Machine, floor_seconds
from benchmarks.on_policy.sides.job import Trajectory
from benchmarks.on_policy.workload import Pair, twice_as_wide
from benchmarks.sft.workload import Shape

SHAPE = Shape(hidden=8, layers=2, heads=2, kv_heads=1, intermediate=16, vocabulary=100, head_dim=4)
PAIR = Pair(SHAPE, twice_as_wide(SHAPE))
LAYERS = 2 * (8 * 8 + 2 * 8 * 4 + 8 * 8 + 3 * 8 * 16)
HEAD = 8 * 100


def trajectory(prompt: int, completion: int) -> Trajectory:
    return [0] * prompt, [0] * completion


def test_slow_memory_makes_sampling_as_long_as_the_longest_completion_reads_weights_and_keys() -> None:
    sampled = [trajectory(3, 2), trajectory(5, 1)]
    seconds = floor_seconds(PAIR, sampled, Machine(flops=1e30, bytes_per_s=4.0, number_bytes=4))
    kv_per_token = 2 * 2 * 1 * 4
    contexts = 3 + 5 + 4
    assert seconds["sample"] == pytest.approx(2 * (LAYERS + HEAD) + kv_per_token * contexts)
    assert seconds["score"] == pytest.approx(0.0)


def test_slow_arithmetic_counts_every_row_and_every_pair_of_tokens() -> None:
    seconds = floor_seconds(PAIR, [trajectory(3, 2)], Machine(flops=1.0, bytes_per_s=1e30, number_bytes=4))
    pair = 4 * 2 * 2 * 4
    forward = 2 * LAYERS * 5 + pair * 15
    assert seconds["sample"] == pytest.approx(2 * LAYERS * 3 + pair * 6 + 2 * 2 * (LAYERS + HEAD) + pair * (3 + 4))
    assert seconds["train"] == pytest.approx(3 * forward + 2 * 2 * (3 * HEAD + 2 * HEAD))
    assert seconds["score"] > 3 * forward
