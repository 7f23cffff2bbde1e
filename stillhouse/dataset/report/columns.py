"""Columns as NumPy arrays, and their distributions in bounded memory.

A distribution counts values rounded to three significant digits. That is finer than a plot or a table shows, whole
numbers below 1000 stay exact, and bins can be chosen at the end. The idea is HdrHistogram's (Gil Tene): bins whose
width grows with their value.
"""

import math
from collections import Counter
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HASH_KEY: Final = "stillhouse/rows."
"""16 bytes, as SipHash takes them."""


def numbers(column: pa.Array) -> "NDArray[np.float64]":
    """Non-null values of a column of numbers or flags."""
    return column.drop_null().cast(pa.float64()).to_numpy(zero_copy_only=False)


def hashes(column: pa.Array) -> "NDArray[np.uint64]":
    """SipHash of each text, equal in every process."""
    from pandas.util import hash_array

    texts = column.fill_null("").to_numpy(zero_copy_only=False)
    return np.asarray(hash_array(texts.astype(object), hash_key=_HASH_KEY, categorize=False), dtype=np.uint64)


_DIGITS: Final = 3


class Distribution:
    """Counts of finite values; others are ignored."""

    def __init__(self) -> None:
        self._counts: Counter[float] = Counter()
        self._sums: list[float] = []

    def add(self, values: "NDArray[np.float64]", times: "NDArray[np.int64] | None" = None) -> None:
        """Counts `values`, each once or `times` times."""
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
        """Number of counted values."""
        return self._counts.total()

    @property
    def sum(self) -> float:
        """Sum of the unrounded values."""
        return math.fsum(self._sums)

    @property
    def mean(self) -> float | None:
        """Mean of the unrounded values; None without any."""
        return self.sum / self.num_values if self._counts else None

    def quantile(self, share: float) -> float | None:
        """Smallest value that at least `share` of the values do not exceed; None without any."""
        needed, seen = share * self.num_values, 0
        for value, count in sorted(self._counts.items()):
            seen += count
            if seen >= needed:
                return value
        return None

    def values(self) -> tuple["NDArray[np.float64]", "NDArray[np.int64]"]:
        """Distinct values in ascending order, and their counts."""
        pairs = sorted(self._counts.items())
        return np.array([value for value, _ in pairs], dtype=np.float64), np.array(
            [count for _, count in pairs], dtype=np.int64
        )


def _rounded(values: "NDArray[np.float64]") -> "NDArray[np.float64]":
    sizes = np.abs(values)
    exponents = np.floor(np.log10(sizes, out=np.zeros_like(sizes), where=sizes > 0))
    digits = np.clip(_DIGITS - 1 - exponents, -300, 300)
    # Positive powers only, since 10 ** -2 is no exact float: 0.7 must stay 0.7, and 12300 must stay 12300.
    up, down = 10.0 ** np.maximum(digits, 0), 10.0 ** np.maximum(-digits, 0)
    return np.round(values * up / down) * down / up
