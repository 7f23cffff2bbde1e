"""Which rows a step trains on: a function of seed and step, so that no iterator has to be restored after a crash."""

from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Final

import numpy as np

_WALK: Final = 1
"""Tells the order in which a source is walked through from those of epochs."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """The order of rows of several sources over epochs, which follow each other without a seam.

    An epoch holds `round(weight * rows)` rows of each source, at least one, in an order of its own. A source of weight
    0.5 gives one half of its rows in the first epoch and the other half in the second; one of weight 2 gives each row
    twice in every epoch. Over epochs, the rows of a source come equally often but for one.

    Args:
        num_rows: of each source, at least one. Rows are numbered on from source to source.
        weights: of each source.
        batch_size: rows of a step.
        num_epochs: in all.
        seed: of the orders.
    """

    num_rows: tuple[int, ...]
    weights: tuple[float, ...]
    batch_size: int
    num_epochs: int
    seed: int

    @property
    def epoch_rows(self) -> int:
        """Rows of one epoch."""
        return sum(self._shares)

    @property
    def num_steps(self) -> int:
        """Steps until the last epoch ends; the very last batch may be smaller than `batch_size`."""
        return -(-self.epoch_rows * self.num_epochs // self.batch_size)

    def rows(self, step: int) -> list[int]:
        """Row numbers of `step`, counted from 0."""
        shares = self._shares
        length = sum(shares)
        first = step * self.batch_size
        last = min(first + self.batch_size, length * self.num_epochs)
        starts = list(accumulate(shares, initial=0))
        rows = []
        for place in range(first, last):
            epoch, place_in_epoch = divmod(place, length)
            # A place among those of all sources, which stand one behind the other.
            slot = int(_order(length, (self.seed, epoch))[place_in_epoch])
            source = bisect_right(starts, slot) - 1
            rows.append(self._walked(source, shares[source], epoch * shares[source] + slot - starts[source]))
        return rows

    def epochs_after(self, step: int) -> float:
        """Epochs that are trained on once `step` steps are done."""
        return min(step * self.batch_size / self.epoch_rows, float(self.num_epochs))

    @property
    def _shares(self) -> list[int]:
        return [max(1, round(weight * rows)) for rows, weight in zip(self.num_rows, self.weights, strict=True)]

    def _walked(self, source: int, share: int, taken: int) -> int:
        """The row that comes after `taken` others of a source, over all epochs."""
        rows = self.num_rows[source]
        row = taken % rows
        if share % rows:
            # Some rows wait for a later epoch: not those at the end of the file, which may be sorted.
            row = int(_order(rows, (self.seed, source, _WALK))[row])
        return sum(self.num_rows[:source]) + row


def distinct_rows(step: int, batch_size: int, num_rows: int, seed: int) -> list[int]:
    """`batch_size` different row numbers for `step`; what an epoch has left over is skipped.

    `batch_size` is at most `num_rows`.
    """
    epoch, place = divmod(step, num_rows // batch_size)
    order = _order(num_rows, (seed, epoch))
    return [int(row) for row in order[place * batch_size : (place + 1) * batch_size]]


# An order of a million rows takes longer to make than a step has to wait for its batch.
@lru_cache(maxsize=8)
def _order(num_rows: int, entropy: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(entropy).permutation(num_rows)
