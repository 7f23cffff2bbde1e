"""An index of the runs of words that evaluation sets hold."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from stillhouse.dataset.words import Hashes, run_hashes

MOST_ROWS: Final = 10
"""A run of words in more rows of a set than this is its template (`Answer with the letter of`), and no sign that any of
them was seen. GPT-3 leaves out runs in more than ten training documents for the same reason (Brown et al. 2020,
arXiv:2005.14165, appendix C)."""
_SLOTS_PER_RUN: Final = 16


class EvaluationRow(NamedTuple):
    """A row of an evaluation set."""

    set: str
    row: int
    """Its number in the file, from 0, blank lines not counted."""


class Overlap(NamedTuple):
    """A run of words of a text that an evaluation row holds as well."""

    start: int
    """Place of the run's first word in the text."""
    row: int
    """Place of the row in the list the index was made of."""


class NgramIndex:
    """Runs of `length` words and the rows that hold them.

    Args:
        rows: Word hashes of the texts of each row, the rows of a set together; rows with equal texts count once.
        sets: For each row the set it belongs to.
        length: Words of a run.
    """

    def __init__(self, rows: Sequence[Sequence[Hashes]], sets: Sequence[str], length: int) -> None:
        self.length = length
        runs = [_distinct([run_hashes(text, length) for text in texts]) for texts in rows]
        hashes = np.concatenate([np.empty(0, np.uint64), *runs])
        owners = np.repeat(np.arange(len(rows)), [len(found) for found in runs])
        kept = _without_templates(hashes, np.unique(np.array(sets, str), return_inverse=True)[1][owners])
        order = kept[np.argsort(hashes[kept], kind="stable")]
        self._hashes, self._rows = hashes[order], owners[order]
        num_slots = 1 << (_SLOTS_PER_RUN * max(1, len(order)) - 1).bit_length()
        self._mask = np.uint64(num_slots - 1)
        self._slots = np.zeros(num_slots, bool)
        self._slots[self._hashes & self._mask] = True

    def __len__(self) -> int:
        return len(self._hashes)

    def overlaps(self, words: Hashes) -> Iterator[Overlap]:
        """Every run of `words` that is in the index, with every row that holds it."""
        runs = run_hashes(words, self.length)
        # Hardly any run is in the index; a look at its slot, a tenth as dear as a search, settles most.
        starts = np.flatnonzero(self._slots[runs & self._mask])
        if not len(starts):
            return
        left = np.searchsorted(self._hashes, runs[starts], side="left")
        right = np.searchsorted(self._hashes, runs[starts], side="right")
        for start, first, end in zip(starts.tolist(), left.tolist(), right.tolist(), strict=True):
            for row in self._rows[first:end].tolist():
                yield Overlap(start, row)


def _distinct(runs: Sequence[Hashes]) -> Hashes:
    return np.unique(np.concatenate(runs)) if runs else np.empty(0, np.uint64)


def _without_templates(hashes: Hashes, sets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Places of the hashes that at most `MOST_ROWS` rows of their set hold."""
    order = np.lexsort((hashes, sets))
    keys = np.stack((hashes[order], sets[order].astype(np.uint64)))
    opens = np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0)) if len(order) else np.empty(0, bool)
    sizes = np.diff(np.append(np.flatnonzero(opens), len(order)))
    return order[np.repeat(sizes <= MOST_ROWS, sizes)]
