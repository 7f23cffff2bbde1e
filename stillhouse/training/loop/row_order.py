"""The rows that a step trains on: a function of seed and step, so that no iterator has to be restored after a crash."""

from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Final

import numpy as np

_SOURCE_ORDER: Final = 1
"""Distinguishes the seed of a source's order from those of epochs."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """The order of rows of several sources over epochs; a batch may span two epochs.

    An epoch holds `round(weight * rows)` rows of each source, at least one, in an order of its own. A source of weight
    0.5 gives one half of its rows in the first epoch and the other half in the second; one of weight 2 gives each row
    twice in every epoch. Over epochs, the counts of a source's rows differ by at most one. Rows are numbered on from
    source to source.
    """

    num_rows: tuple[int, ...]
    weights: tuple[float, ...]
    batch_size: int
    num_epochs: int
    seed: int

    @property
    def epoch_rows(self) -> int:
        return sum(self._shares)

    @property
    def num_steps(self) -> int:
        """Return the steps until the last epoch ends; the very last batch may be smaller than `batch_size`."""
        return -(-self.epoch_rows * self.num_epochs // self.batch_size)

    def rows(self, step: int) -> list[int]:
        """Return the row numbers of `step`, counted from 0."""
        shares = self._shares
        length = sum(shares)
        first = step * self.batch_size
        last = min(first + self.batch_size, length * self.num_epochs)
        starts = list(accumulate(shares, initial=0))
        rows = []
        for place in range(first, last):
            epoch, place_in_epoch = divmod(place, length)
            # An index into the concatenated shares of all sources.
            slot = int(_order(length, (self.seed, epoch))[place_in_epoch])
            source = bisect_right(starts, slot) - 1
            rows.append(self._row(source, shares[source], epoch * shares[source] + slot - starts[source]))
        return rows

    def epochs_after(self, step: int) -> float:
        """Return the number of epochs completed after `step` steps."""
        return min(step * self.batch_size / self.epoch_rows, float(self.num_epochs))

    @property
    def _shares(self) -> list[int]:
        return [max(1, round(weight * rows)) for rows, weight in zip(self.num_rows, self.weights, strict=True)]

    def _row(self, source: int, share: int, taken: int) -> int:
        """Return the row of a source that comes after `taken` others, over all epochs."""
        rows = self.num_rows[source]
        row = taken % rows
        if share % rows:
            # Shuffled, so that the rows left to a later epoch are not those at the end of a sorted file.
            row = int(_order(rows, (self.seed, source, _SOURCE_ORDER))[row])
        return sum(self.num_rows[:source]) + row


def distinct_rows(step: int, batch_size: int, num_rows: int, seed: int) -> list[int]:
    """Return `batch_size` different row numbers, at most `num_rows`; an epoch's incomplete batch is skipped."""
    epoch, place = divmod(step, num_rows // batch_size)
    order = _order(num_rows, (seed, epoch))
    return [int(row) for row in order[place * batch_size : (place + 1) * batch_size]]


# Cached: shuffling a million rows takes longer than a step should wait for its batch.
@lru_cache(maxsize=8)
def _order(num_rows: int, entropy: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(entropy).permutation(num_rows)
