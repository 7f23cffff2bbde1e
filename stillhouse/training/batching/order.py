"""Which rows a step trains on: a function of seed and step, so that no iterator has to be restored after a crash."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
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
        length = self.epoch_rows
        first = step * self.batch_size
        last = min(first + self.batch_size, length * self.num_epochs)
        return [
            self._row(place // length, int(_order(length, (self.seed, place // length))[place % length]))
            for place in range(first, last)
        ]

    def epochs_after(self, step: int) -> float:
        """Epochs that are trained on once `step` steps are done."""
        return min(step * self.batch_size / self.epoch_rows, float(self.num_epochs))

    @property
    def _shares(self) -> list[int]:
        return [max(1, round(weight * rows)) for rows, weight in zip(self.num_rows, self.weights, strict=True)]

    def _row(self, epoch: int, place: int) -> int:
        """The row at a place of an epoch in which the sources stand one behind the other."""
        starts = list(accumulate(self._shares, initial=0))
        source = next(number for number, (_, end) in enumerate(pairwise(starts)) if place < end)
        share, rows = self._shares[source], self.num_rows[source]
        walked = (epoch * share + place - starts[source]) % rows
        if share % rows:
            # Some rows wait for a later epoch: not those at the end of the file, which may be sorted.
            walked = int(_order(rows, (self.seed, source, _WALK))[walked])
        return sum(self.num_rows[:source]) + walked


def distinct_rows(step: int, batch_size: int, num_rows: int, seed: int) -> list[int]:
    """`batch_size` different row numbers for `step`; what an epoch has left over is skipped.

    `batch_size` is at most `num_rows`.
    """
    epoch, place = divmod(step, num_rows // batch_size)
    order = _order(num_rows, (seed, epoch))
    return [int(row) for row in order[place * batch_size : (place + 1) * batch_size]]


# An order of a million rows takes longer to make than a step has to wait for its batch.
@lru_cache(maxsize=8)
def _order(num_rows: int, entropy: Sequence[int]) -> np.ndarray:
    return np.random.default_rng(list(entropy)).permutation(num_rows)
