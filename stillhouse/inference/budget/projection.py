"""The cost of all rollouts, judged by those that are done."""

import math
from typing import Final

from stillhouse.progress.state import UsdRange

MIN_ROLLOUTS: Final = 20
"""Rollouts seen before a projection is made; with fewer, one long one would decide it."""
_T: Final = 2.1
"""Student's t at 0.95 for the fewest rollouts, 20; for more it is 2.0, so that the interval is a little wide."""


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

    def project(self, num_total: int) -> UsdRange:
        """Return the sum of `num_total` figures of which these are the first, and what holds 95 of 100 such sums.

        With n figures of mean m and deviation s, the sum of the k that are to come lies in

            k * m  +-  t * s * k * sqrt(1 / k + 1 / n)

        (Hahn and Meeker, Statistical Intervals, 1991, section 4.8: prediction interval for the mean of k future
        observations, times k). The sum of the n is known. Rollouts that end first are the short ones, so early
        projections lean low.
        """
        done = self.count * self.mean
        to_come = max(0, num_total - self.count)
        estimate = done + to_come * self.mean
        if to_come == 0:
            return UsdRange(estimate, estimate, estimate)
        deviation = math.sqrt(self._squares / (self.count - 1))
        half = _T * deviation * to_come * math.sqrt(1.0 / to_come + 1.0 / self.count)
        return UsdRange(max(done, estimate - half), estimate, estimate + half)
