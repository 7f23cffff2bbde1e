"""Confidence intervals of shares, in closed form."""

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Final, NamedTuple

CONFIDENCE: Final = 0.95
"""Probability of covering the true value, of all intervals in reports."""
_Z: Final = NormalDist().inv_cdf((1.0 + CONFIDENCE) / 2.0)


class ConfidenceInterval(NamedTuple):
    """Bounds of a share, within [0, 1]."""

    low: float
    high: float


def wilson_interval(share: float, num_trials: float) -> ConfidenceInterval:
    """Return Wilson's score interval of a binomial share.

        (p + z^2/2n  +-  z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n),   z = the normal quantile of (1 + CONFIDENCE) / 2

    Wilson 1927, "Probable inference, the law of succession, and statistical inference", JASA 22; recommended for small
    n and shares near 0 or 1 by Brown, Cai, DasGupta 2001, "Interval estimation for a binomial proportion".

    Args:
        share: p, the share seen.
        num_trials: n > 0; an effective sample size need not be whole.
    """
    shrink = 1.0 + _Z * _Z / num_trials
    middle = (share + _Z * _Z / (2.0 * num_trials)) / shrink
    half = _Z * math.sqrt(share * (1.0 - share) / num_trials + (_Z / (2.0 * num_trials)) ** 2) / shrink
    return ConfidenceInterval(max(0.0, middle - half), min(1.0, middle + half))


class Group(NamedTuple):
    """Trials that resemble each other: the trajectories of one prompt."""

    size: int
    right: int


def effective_sample_size(groups: Mapping[Group, int]) -> float:
    """Return how many independent trials tell as much about the mean as these, which come in groups.

    Trajectories of one prompt resemble each other, so counting each as a trial makes an interval too narrow. With group
    sizes m_k, sums s_k, n = sum m_k and p = sum s_k / n, the variance of the mean allowing for groups is
    v = sum (s_k - p m_k)^2 / n^2, and the result is p(1-p) / v, at most n. It is n exactly where each group has one
    member, and the number of groups where all members of a group agree. Where p is 0 or 1, v says nothing and the
    number of groups is returned. Kish 1965, "Survey Sampling" (design effect); Korn and Graubard 1998, "Confidence
    intervals for proportions with small expected number of positive counts estimated from survey data".

    Args:
        groups: how many groups there are of each kind. Groups of no trials count for nothing; one has to have some.
    """
    counted = [(size, right, times) for (size, right), times in groups.items() if size]
    num_trials = sum(size * times for size, _, times in counted)
    share = sum(right * times for _, right, times in counted) / num_trials
    if share in (0.0, 1.0):
        return float(sum(times for *_, times in counted))
    variance = math.fsum(times * (right - share * size) ** 2 for size, right, times in counted) / num_trials**2
    return min(float(num_trials), share * (1.0 - share) / variance) if variance else float(num_trials)
