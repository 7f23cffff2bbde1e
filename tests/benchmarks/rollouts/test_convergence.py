import pytest

from benchmarks.rollouts.convergence import follow
from benchmarks.rollouts.process import Second
from tests.provider.limits import Limits, Step


def test_share_and_refusals_are_of_the_time_after_settling() -> None:
    seconds = [Second(served=2, refused=2)] * 10 + [Second(served=10)] * 9 + [Second(served=9, refused=1)]
    (row,) = follow(seconds, [Step(at_s=0, limits=Limits(requests_per_minute=600))], settle_s=10, end_s=20)
    assert row.share == pytest.approx(0.99)
    assert row.refused_share == pytest.approx(1 / 100)
    assert row.refused_share_in_all == pytest.approx(21 / 140)
    # Five seconds of full use, all of them after the tenth.
    assert row.reached_s == 15.0


def test_every_step_is_measured_by_its_own_limit() -> None:
    seconds = [Second(tokens=100)] * 20 + [Second(tokens=50, served=1, refused=1)] * 20
    steps = [Step(at_s=at, limits=Limits(tokens_per_minute=tpm)) for at, tpm in ((0, 6000.0), (20, 12_000.0))]
    first, second = follow(seconds, steps, settle_s=5, end_s=40)
    assert (first.share, first.refused_share, first.reached_s) == (1.0, 0.0, 5.0)
    assert (second.share, second.refused_share, second.reached_s) == (0.25, 0.5, None)


def test_concurrency_is_measured_by_the_time_of_service() -> None:
    seconds = [Second(served=3, busy_s=3.5)] * 10
    (row,) = follow(seconds, [Step(at_s=0, limits=Limits(concurrency=4))], settle_s=0, end_s=10)
    assert row.share == pytest.approx(0.875)
    with pytest.raises(ValueError, match="expected a limit"):
        follow(seconds, [Step(at_s=0, limits=Limits())], settle_s=0, end_s=10)
