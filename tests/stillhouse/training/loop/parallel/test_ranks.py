import math
from typing import Any

import pytest
import torch

from stillhouse.errors import ConfigError
from stillhouse.training.loop.parallel.ranks import Ranks, join_ranks


def exchange(ranks: Ranks) -> tuple[Any, ...]:
    ranks.barrier()
    return (ranks.rank, ranks.size, ranks.is_first, ranks.gather({"rank": ranks.rank}), ranks.broadcast(ranks.rank))


def test_ranks_hear_of_each_other(pair):
    assert pair.run(exchange) == [
        (0, 2, True, [{"rank": 0}, {"rank": 1}], 0),
        (1, 2, False, [{"rank": 0}, {"rank": 1}], 0),
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
    with pytest.raises(ConfigError, match="torch finds no CUDA device here"), join_ranks("cuda"):
        pass
