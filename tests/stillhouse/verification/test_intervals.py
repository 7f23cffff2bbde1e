import math
from collections import Counter
from statistics import NormalDist

import pytest

from stillhouse.verification.intervals import Group, effective_sample_size, wilson_interval


@pytest.mark.parametrize(("share", "num_trials"), [(0.3, 10), (0.9, 300), (0.5, 1), (0.01, 1000)])
def test_bounds_are_the_shares_that_a_score_test_just_accepts(share: float, num_trials: int) -> None:
    z = NormalDist().inv_cdf(0.975)
    for bound in wilson_interval(share, num_trials):
        assert abs(share - bound) == pytest.approx(z * math.sqrt(bound * (1 - bound) / num_trials))


def test_nothing_right_and_everything_right_have_one_sided_intervals() -> None:
    z2 = NormalDist().inv_cdf(0.975) ** 2
    assert wilson_interval(0.0, 10) == pytest.approx((0.0, z2 / (10 + z2)))
    assert wilson_interval(1.0, 10) == pytest.approx((10 / (10 + z2), 1.0))


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ([[True], [False], [True], [True]], 4.0),
        ([[True] * 5, [False] * 5, [True] * 5], 3.0),
        ([[True, False], [False, True]], 4.0),
        ([[True] * 3] * 4, 4.0),
        ([[False] * 3, []], 1.0),
        # p = 1/2, n = 8, sums 3 and 1 around 2: v = (1 + 1) / 64, so 0.25 / v = 8.
        ([[True, True, True, False], [True, False, False, False]], 8.0),
        # p = 1/2, n = 8, sums 4 and 0: v = 8 / 64, so 2.
        ([[True] * 4, [False] * 4], 2.0),
    ],
)
def test_groups_count_for_what_they_tell(groups: list[list[bool]], size: float) -> None:
    counted = Counter(Group(len(group), sum(group)) for group in groups)
    assert effective_sample_size(counted) == pytest.approx(size)
