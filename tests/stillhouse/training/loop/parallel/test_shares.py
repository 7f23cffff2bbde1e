import random

import pytest
import torch

from stillhouse.training.loop.parallel.ranks import Ranks
from stillhouse.training.loop.parallel.shares import shares
from stillhouse.types import Sample


def group(*lengths: int) -> list[Sample]:
    return [Sample([0] * length, [False] * length, f"{length}") for length in lengths]


def lengths(groups: list[list[Sample]]) -> list[list[int]]:
    return [[len(sample.token_ids) for sample in group] for group in groups]


def test_rounds_are_of_like_length_and_processes_of_like_load():
    dealt = shares([group(90), group(30), group(80), group(20)], 2)
    assert [lengths(own) for own in dealt] == [[[90], [20]], [[80], [30]]]


def test_a_microbatch_is_halved_rather_than_leaving_a_process_idle():
    dealt = shares([group(50, 40, 30, 20)], 2)
    assert [lengths(own) for own in dealt] == [[[50, 20]], [[40, 30]]]


def test_samples_too_few_to_go_round_are_filled_up_with_empty_microbatches():
    dealt = shares([group(50), group(40), group(30)], 2)
    assert [lengths(own) for own in dealt] == [[[50], []], [[40], [30]]]


@pytest.mark.parametrize("size", [2, 3, 8])
def test_every_sample_comes_once_and_every_process_has_as_many_microbatches(size: int):
    draw = random.Random(size)
    groups = [group(*(draw.randint(1, 900) for _ in range(draw.randint(1, 6)))) for _ in range(draw.randint(1, 20))]
    dealt = shares(groups, size)
    assert len({len(own) for own in dealt}) == 1
    seen = sorted(id(sample) for own in dealt for part in own for sample in part)
    assert seen == sorted(id(sample) for part in groups for sample in part)
    wholes = [{id(sample) for sample in part} for part in groups]
    assert all(any({id(s) for s in part} <= whole for whole in wholes) for own in dealt for part in own)


def test_a_process_alone_keeps_its_microbatches_and_its_values():
    ranks = Ranks.single(torch.device("cpu"))
    groups = [group(3, 5), group(9)]
    assert ranks.share(groups) == groups
    assert ranks.gather("value") == ["value"]
    assert ranks.broadcast("value") == "value"
    assert ranks.sum_and_max({"loss": 2.0}, {"largest": 3.0}) == ({"loss": 2.0}, {"largest": 3.0})
    assert ranks.is_first
    ranks.barrier()
