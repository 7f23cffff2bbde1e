from pathlib import Path

import pytest

from benchmarks.kill_campaigns import Campaigns, Outcome


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_campaign_of_kills_loses_nothing_and_pays_for_no_more_than_was_in_flight(tmp_path: Path) -> None:
    outcome = Campaigns("generate", tmp_path, 40).run(seed=11, num_kills=3)
    assert outcome.num_kills > 0
    assert outcome.num_billed == 3 * 40 + outcome.num_again
    assert outcome.is_right, outcome


def test_a_campaign_that_goes_wrong_says_so() -> None:
    assert Outcome(1, num_again=2, in_flight=2).is_right
    for wrong in ({"num_again": 3}, {"num_lost": 1}, {"num_doubled": 1}, {"num_wrong": 1}, {"num_left": 1}):
        assert not Outcome(1, in_flight=2, **wrong).is_right
    assert not Outcome(1, same_weights=False).is_right
