"""Shingles of a text, and their exact Jaccard similarity for the few pairs that a signature cannot decide.

The shingles of all candidates together may not fit into memory; they lie in a scratch file.
"""

import os
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from stillhouse.dataset.words import Hashes, run_hashes, word_hashes, words_and_signs

_HASH: Final = np.dtype("<u4")
"""Half of a shingle's hash, to save the disk: of a thousand shingles, two share it once in 10,000 texts."""


def shingle_hashes(text: str, num_words: int) -> Hashes:
    """Hash of each run of `num_words` words of a normalised text, signs counted as words, in order.

    A shorter text is one shingle: of few words each one matters, so it is like its equals alone. No text has none.
    """
    hashes = word_hashes(words_and_signs(text))
    return run_hashes(hashes, min(num_words, len(hashes))) if len(hashes) else hashes


class ShingleFile:
    """Sets of shingles by the number of their row, on disk."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b")
        self._places: dict[int, tuple[int, int]] = {}
        self._end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, row: int, hashes: Hashes) -> None:
        """Keeps the shingles of a row."""
        distinct = np.sort(hashes.astype(_HASH))
        if len(distinct):
            distinct = distinct[np.append(True, distinct[1:] != distinct[:-1])]
        self._places[row] = self._end, distinct.nbytes
        self._file.write(distinct.tobytes())
        self._end += distinct.nbytes

    def jaccard(self, first: int, second: int) -> float:
        """Shingles that two rows share, as a share of those that either has.

        Raises:
            KeyError: the shingles of one of them were not added.
        """
        ours, theirs = self._read(first), self._read(second)
        shared = len(np.intersect1d(ours, theirs, assume_unique=True))
        return shared / max(1, len(ours) + len(theirs) - shared)

    def _read(self, row: int) -> npt.NDArray[np.uint32]:
        self._file.flush()
        start, size = self._places[row]
        return np.frombuffer(os.pread(self._file.fileno(), size, start), _HASH)
