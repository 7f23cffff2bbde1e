"""A distribution in bounded memory: counts of values to three significant digits.

That is finer than a picture shows or a table prints, whole numbers below 1000 stay exact, and bins can be chosen once
everything is known. The idea is HdrHistogram's (Gil Tene): bins whose width follows their value.
"""

import math
from collections import Counter
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DIGITS: Final = 3


class Distribution:
    """Counts of finite values; others are passed over."""

    def __init__(self) -> None:
        self._counts: Counter[float] = Counter()
        self._sums: list[float] = []

    def add(self, values: "NDArray[np.float64]", times: "NDArray[np.int64] | None" = None) -> None:
        """Counts `values`, each once or as often as `times` says."""
        finite = np.isfinite(values)
        known = values[finite]
        counts = np.ones(len(known), dtype=np.int64) if times is None else times[finite]
        self._sums.append(math.fsum(known * counts))
        distinct, places = np.unique(_rounded(known), return_inverse=True)
        totals = np.bincount(places, weights=counts, minlength=len(distinct))
        for value, total in zip(distinct.tolist(), totals.tolist(), strict=True):
            self._counts[value] += int(total)

    @property
    def num_values(self) -> int:
        """How many were counted."""
        return self._counts.total()

    @property
    def sum(self) -> float:
        """Of the values as they came."""
        return math.fsum(self._sums)

    @property
    def mean(self) -> float | None:
        """Of the values as they came; None without any."""
        return self.sum / self.num_values if self._counts else None

    def quantile(self, share: float) -> float | None:
        """The smallest value that at least `share` of the values do not exceed; None without any."""
        needed, seen = share * self.num_values, 0
        for value, count in sorted(self._counts.items()):
            seen += count
            if seen >= needed:
                return value
        return None

    def values(self) -> tuple["NDArray[np.float64]", "NDArray[np.int64]"]:
        """Distinct values, ascending, and their counts."""
        pairs = sorted(self._counts.items())
        return np.array([value for value, _ in pairs], dtype=np.float64), np.array(
            [count for _, count in pairs], dtype=np.int64
        )


def _rounded(values: "NDArray[np.float64]") -> "NDArray[np.float64]":
    sizes = np.abs(values)
    exponents = np.floor(np.log10(sizes, out=np.zeros_like(sizes), where=sizes > 0))
    digits = np.clip(_DIGITS - 1 - exponents, -300, 300)
    # Two powers, as 10 ** -2 is no float: 0.7 has to come back as 0.7, and 12300 as 12300.
    up, down = 10.0 ** np.maximum(digits, 0), 10.0 ** np.maximum(-digits, 0)
    return np.round(values * up / down) * down / up
