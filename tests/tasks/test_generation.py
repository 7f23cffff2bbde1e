from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhouse.types import Artifact
from tasks.generation import ShardQuotas
from tasks.rollouts import Rollouts


def gave(*shards: tuple[int, int]) -> Rollouts:
    """Return rollouts of shards that accepted so many of so many candidates."""
    artifacts = [
        Artifact(uri="", fingerprint=str(index), num_rows=candidates, facts={"accepted": a, "trajectories": candidates})
        for index, (a, candidates) in enumerate(shards)
    ]
    return Rollouts(shards=tuple(artifacts), metadata=(), sampling=None, facts={})


def rows_and_candidates(quotas: ShardQuotas) -> list[tuple[int, int | None]]:
    return [(quota.rows, quota.max_candidates) for quota in quotas.shards]


def quotas_of(target: int, max_candidates: int | None, sizes: Sequence[int] = (10, 10)) -> ShardQuotas:
    quotas = ShardQuotas(target, max_candidates)
    quotas.share(sizes)
    return quotas


def test_a_target_is_shared_out_by_the_number_of_prompts_once() -> None:
    quotas = quotas_of(10, 40, [300, 100, 100])
    quotas.share([1, 1, 1])
    assert rows_and_candidates(quotas) == [(6, 24), (2, 8), (2, 8)]


@pytest.mark.parametrize(
    ("target", "max_candidates", "missing", "given", "raised"),
    [
        # Missing rows fall to the shards that met their quotas.
        (6, None, 2, [(1, 20), (3, 5)], [(3, None), (5, None)]),
        # Every shard gave all it has.
        (6, None, 4, [(1, 20), (1, 20)], None),
        # Candidates that a shard did not need go to those that were stopped by their part.
        (8, 20, 3, [(4, 4), (1, 10)], [(6, 7), (5, 13)]),
        # The most candidates are through.
        (8, 12, 2, [(3, 6), (3, 6)], None),
    ],
)
def test_quotas_rise_where_there_are_candidates(
    target: int, max_candidates: int | None, missing: int, given: Any, raised: Any
) -> None:
    quotas = quotas_of(target, max_candidates)
    assert quotas.raise_by(missing, gave(*given)) == (raised is not None)
    assert raised is None or rows_and_candidates(quotas) == raised


@given(
    target=st.integers(0, 500), max_candidates=st.none() | st.integers(1, 500),
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=8),
)  # fmt: skip
def test_the_shares_add_up(target: int, max_candidates: int | None, sizes: Sequence[int]) -> None:
    quotas = quotas_of(target, max_candidates, sizes)
    assert sum(one.rows for one in quotas.shards) == target
    assert all(one.rows >= 0 for one in quotas.shards)
    if max_candidates is not None:
        assert sum(one.max_candidates or 0 for one in quotas.shards) == max_candidates
