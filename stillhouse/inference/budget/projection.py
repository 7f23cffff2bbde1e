"""What all rollouts will cost, judged by those that are done."""

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

MIN_ROLLOUTS: Final = 20
"""Rollouts seen before a projection is made; with fewer, one long one would decide it."""
CONFIDENCE: Final = 0.95


@dataclass(frozen=True, slots=True)
class Projection:
    """An estimate and the interval around it at the level `CONFIDENCE`."""

    estimate: float
    low: float
    high: float


class Series:
    """Mean and variance of figures that come one by one, after Welford (Technometrics 4(3), 1962)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self._squares = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        step = value - self.mean
        self.mean += step / self.count
        self._squares += step * (value - self.mean)

    def project(self, num_total: int) -> Projection:
        """The sum of `num_total` figures of which these are the first.

        With n figures of mean m and deviation s, the sum of the k that are to come lies in

            k * m  +-  t(n - 1) * s * k * sqrt(1 / k + 1 / n)

        (Hahn and Meeker, Statistical Intervals, 1991, section 4.8: prediction interval for the mean of k future
        observations, times k). The sum of the n is known. Rollouts that end first are the short ones, so early
        projections lean low.
        """
        done = self.count * self.mean
        to_come = max(0, num_total - self.count)
        estimate = done + to_come * self.mean
        if to_come == 0:
            return Projection(estimate, estimate, estimate)
        deviation = math.sqrt(self._squares / (self.count - 1))
        half = student_t(CONFIDENCE, self.count - 1) * deviation * to_come
        half *= math.sqrt(1.0 / to_come + 1.0 / self.count)
        return Projection(estimate, max(done, estimate - half), estimate + half)


def student_t(confidence: float, freedom: int) -> float:
    """The two-sided quantile of Student's t, from the normal quantile z by Cornish and Fisher's expansion.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5, with four terms; for 19 degrees of freedom and
    more it is right to five digits.
    """
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return sum(term / freedom**power for power, term in enumerate(terms))
