import random

import pytest

from stillhouse.inference.rate_limit.values import TokenEstimates


def test_before_the_first_answer_all_that_a_request_allows_is_set_aside() -> None:
    assert TokenEstimates().estimate(400, 1000, surely=False) == pytest.approx(1100.0)


def test_the_ratio_of_characters_to_tokens_is_learnt() -> None:
    sizes = TokenEstimates()
    for _ in range(200):
        sizes.learn(1000, 500, 100)
    assert sizes.characters_per_token == pytest.approx(2.0, rel=0.01)
    assert sizes.estimate(1000, 4096, surely=False) == pytest.approx(600.0, rel=0.02)


def test_what_must_not_be_exceeded_is_reckoned_with_what_nine_of_ten_take() -> None:
    sizes, rng = TokenEstimates(), random.Random(0)
    for _ in range(3000):
        sizes.learn(400, 100, rng.randint(1, 1000))
    assert 750 < sizes.estimate(0, 4096, surely=True) < 1050
    assert 400 < sizes.estimate(0, 4096, surely=False) < 600


def test_a_request_never_takes_more_than_it_allows() -> None:
    sizes = TokenEstimates()
    sizes.learn(400, 100, 5000)
    assert sizes.estimate(0, 300, surely=True) == 300


@pytest.mark.parametrize(("counted", "reserves_all"), [(4196, True), (150, False)])
def test_what_is_left_shows_whether_a_provider_counts_all_that_is_allowed(counted: int, reserves_all: bool) -> None:
    sizes = TokenEstimates()
    sizes.learn(400, 100, 50)
    sizes.watch(1e6, 100, 4096)
    sizes.watch(1e6 - 50 * counted, 150, 4096)
    assert sizes.reserves_all is reserves_all
    assert sizes.estimate(0, 4096, surely=False) == (4096 if reserves_all else 50)
