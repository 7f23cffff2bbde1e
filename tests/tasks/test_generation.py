from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from stillhouse.types import Artifact
from tasks.generation import ShardQuotas
from tasks.rollouts import Rollouts


def gave(*shards: tuple[int, int]) -> Rollouts:
    """Rollouts of shards that accepted so many of so many candidates."""
    artifacts = [
        Artifact(uri="", fingerprint=str(index), num_rows=candidates, facts={"accepted": a, "trajectories": candidates})
        for index, (a, candidates) in enumerate(shards)
    ]
    return Rollouts(shards=tuple(artifacts), metadata=(), sampling=None, facts={})


def rows_and_candidates(quotas: ShardQuotas) -> list[tuple[int, int | None]]:
    return [(quota.rows, quota.max_candidates) for quota in quotas.shards]


def test_a_target_is_shared_out_by_the_number_of_prompts() -> None:
    quotas = ShardQuotas(10, max_candidates=40)
    quotas.share([300, 100, 100])
    assert rows_and_candidates(quotas) == [(6, 24), (2, 8), (2, 8)]


def test_asking_again_keeps_the_shares() -> None:
    quotas = ShardQuotas(4, max_candidates=None)
    quotas.share([10, 10])
    quotas.raise_by(2, gave((2, 3), (2, 2)))
    quotas.share([10, 10])
    assert rows_and_candidates(quotas) == [(3, None), (3, None)]


def test_missing_rows_fall_to_the_shards_that_met_their_quotas() -> None:
    quotas = ShardQuotas(6, max_candidates=None)
    quotas.share([10, 10])
    assert quotas.raise_by(2, gave((1, 20), (3, 5)))
    assert rows_and_candidates(quotas) == [(3, None), (5, None)]


def test_no_quota_rises_once_every_shard_gave_all_it_has() -> None:
    quotas = ShardQuotas(6, max_candidates=None)
    quotas.share([10, 10])
    assert not quotas.raise_by(4, gave((1, 20), (1, 20)))


def test_candidates_that_a_shard_did_not_need_go_to_those_that_were_stopped_by_their_part() -> None:
    quotas = ShardQuotas(8, max_candidates=20)
    quotas.share([10, 10])
    assert rows_and_candidates(quotas) == [(4, 10), (4, 10)]
    assert quotas.raise_by(3, gave((4, 4), (1, 10)))
    assert sum(most or 0 for _, most in rows_and_candidates(quotas)) == 20
    assert rows_and_candidates(quotas)[1][1] == 13


def test_the_most_candidates_end_it() -> None:
    quotas = ShardQuotas(8, max_candidates=12)
    quotas.share([10, 10])
    assert not quotas.raise_by(2, gave((3, 6), (3, 6)))


@given(
    target=st.integers(0, 500), max_candidates=st.none() | st.integers(1, 500),
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=8),
)  # fmt: skip
def test_the_shares_add_up(target: int, max_candidates: int | None, sizes: Sequence[int]) -> None:
    quotas = ShardQuotas(target, max_candidates)
    quotas.share(sizes)
    assert sum(one.rows for one in quotas.shards) == target
    assert all(one.rows >= 0 for one in quotas.shards)
    if max_candidates is not None:
        assert sum(one.max_candidates or 0 for one in quotas.shards) == max_candidates
