import math
import random
import time
from typing import Any

import pytest
import torch

from stillhouse.errors import ConfigError
from stillhouse.training.ranks import Ranks, deal_microbatches, join_ranks
from stillhouse.types import Sample


def exchange(ranks: Ranks) -> tuple[Any, ...]:
    ranks.barrier()
    return (ranks.rank, ranks.size, ranks.is_first, ranks.gather({"rank": ranks.rank}))


def test_ranks_hear_of_each_other(pair):
    assert pair.run(exchange) == [
        (0, 2, True, [{"rank": 0}, {"rank": 1}]),
        (1, 2, False, [{"rank": 0}, {"rank": 1}]),
    ]


def reduce(ranks: Ranks, sums: list[dict[str, float]], maxima: list[dict[str, float]]) -> Any:
    return ranks.sum_and_max(sums[ranks.rank], maxima[ranks.rank])


def test_sums_and_maxima_are_the_same_everywhere_also_of_names_that_a_rank_lacks(pair):
    seen = pair.run(reduce, [{"loss": 0.1, "nll": 2.0}, {"loss": 0.2}], [{"flag": 0.0}, {"flag": 1.0, "most": -3.0}])
    assert seen == [({"loss": 0.1 + 0.2, "nll": 2.0}, {"flag": 1.0, "most": -3.0})] * 2


def test_what_is_no_number_in_one_rank_is_none_in_any(pair):
    for sums, maxima in pair.run(reduce, [{"loss": 1.0}, {"loss": math.nan}], [{"most": math.nan}, {"most": 1.0}]):
        assert math.isnan(sums["loss"])
        assert math.isnan(maxima["most"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="has what the test is to miss")
def test_a_device_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match="CUDA"), join_ranks("cuda"):
        pass


def group(*lengths: int) -> list[Sample]:
    return [Sample([0] * length, [False] * length, f"{length}") for length in lengths]


def lengths(groups: list[list[Sample]]) -> list[list[int]]:
    return [[len(sample.token_ids) for sample in group] for group in groups]


def test_rounds_are_of_like_length_and_processes_of_like_load():
    dealt = deal_microbatches([group(90), group(30), group(80), group(20)], 2)
    assert [lengths(share) for share in dealt] == [[[90], [20]], [[80], [30]]]


def test_a_microbatch_is_halved_rather_than_leaving_a_process_idle():
    dealt = deal_microbatches([group(50, 40, 30, 20)], 2)
    assert [lengths(share) for share in dealt] == [[[50, 20]], [[40, 30]]]


def test_samples_too_few_to_go_round_are_filled_up_with_empty_microbatches():
    dealt = deal_microbatches([group(50), group(40), group(30)], 2)
    assert [lengths(share) for share in dealt] == [[[50], []], [[40], [30]]]


@pytest.mark.parametrize("size", [2, 3, 8])
def test_every_sample_comes_once_and_every_process_has_as_many_microbatches(size: int):
    draw = random.Random(size)
    groups = [group(*(draw.randint(1, 900) for _ in range(draw.randint(1, 6)))) for _ in range(draw.randint(1, 20))]
    dealt = deal_microbatches(groups, size)
    assert len({len(share) for share in dealt}) == 1
    seen = sorted(id(sample) for share in dealt for part in share for sample in part)
    assert seen == sorted(id(sample) for part in groups for sample in part)
    wholes = [{id(sample) for sample in part} for part in groups]
    assert all(any({id(s) for s in part} <= whole for whole in wholes) for share in dealt for part in share)


def test_a_process_alone_keeps_its_microbatches_and_its_values():
    ranks = Ranks.single(torch.device("cpu"))
    groups = [group(3, 5), group(9)]
    assert ranks.local_microbatches(groups) == groups
    assert ranks.gather("value") == ["value"]
    assert ranks.sum_and_max({"loss": 2.0}, {"largest": 3.0}) == ({"loss": 2.0}, {"largest": 3.0})
    assert ranks.is_first
    ranks.barrier()


def late(ranks: Ranks, values: list[str]) -> str:
    if ranks.is_first:
        time.sleep(0.3)
    return ranks.broadcast(values[ranks.rank])


def test_all_get_what_the_first_has_also_when_it_comes_late(pair: Any) -> None:
    assert pair.run(late, ["of the first", "of the other"]) == ["of the first"] * 2
