"""Near-duplicates: pairs that signatures propose, decided by the exact Jaccard similarity of their shingles.

At a threshold of 0.85 an estimate from 128 hashes errs by 0.03, which would lose half of the pairs just above it.
Shingles of all candidates may not fit into memory and lie in a scratch file; comparing a pair takes 10 us, and only
pairs whose estimate is close to the threshold or above get that far.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from stillhouse.config import DuplicatesConfig
from stillhouse.dataset.duplicates.bands import Bands, Places, SignatureFile, likely_pairs
from stillhouse.dataset.duplicates.corpus import Corpus, Kind
from stillhouse.dataset.duplicates.signatures import shingle_hashes
from stillhouse.dataset.duplicates.texts import read_texts
from stillhouse.dataset.words import Hashes

_HASH: Final = np.dtype("<u4")
"""Half of a shingle's hash, to save the disk: of a thousand shingles, two share it once in 10,000 texts."""


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


class Repeat(NamedTuple):
    """What a row nearly repeats."""

    of: int
    """Number of a row that repeats none."""
    similarity: float
    """Jaccard similarity of their shingles."""


def near_rows(corpus: Corpus, firsts: Places, config: DuplicatesConfig, scratch: Path) -> dict[int, Repeat]:
    """Rows that nearly repeat one before them in the corpus's order, of those that are the first of their equals.

    A row is compared only with rows that stand, so that nothing is dropped for its likeness to a row that is dropped
    itself: similarity is not transitive, and a chain of small changes may lead anywhere. Of several rows it is like, it
    repeats the first.
    """
    found: dict[int, Repeat] = {}
    with _likely(corpus, firsts, "row", config, scratch) as (pairs, shingles):
        # Sorted by the later row: whether the earlier one stands is settled.
        for row, before in pairs:
            if row not in found and before not in found:
                similarity = shingles.jaccard(row, before)
                if similarity >= config.threshold:
                    found[row] = Repeat(before, similarity)
    return found


def prompt_clusters(corpus: Corpus, config: DuplicatesConfig, scratch: Path) -> npt.NDArray[np.int32]:
    """For each of `corpus.prompt_ids` the first of its cluster: prompts that a chain of likenesses connects.

    Chains count here, for a split must part no two prompts that are alike.
    """
    firsts = corpus.firsts("prompt", ours_only=True)
    clusters = _Clusters(len(corpus.prompt_ids))
    ours = slice(corpus.num_earlier, None)
    links = np.stack((corpus.prompts[ours], corpus.prompts[firsts[ours]]))
    for first, second in np.unique(links[:, links[0] != links[1]], axis=1).T:
        clusters.join(int(first), int(second))
    if config.near:
        with _likely(corpus, firsts, "prompt", config, scratch) as (pairs, shingles):
            for row, before in pairs:
                first, second = int(corpus.prompts[row]), int(corpus.prompts[before])
                if not clusters.joined(first, second) and shingles.jaccard(row, before) >= config.threshold:
                    clusters.join(first, second)
    return clusters.roots()


@contextmanager
def _likely(
    corpus: Corpus, firsts: Places, kind: Kind, config: DuplicatesConfig, scratch: Path
) -> Iterator[tuple[Iterator[tuple[int, int]], ShingleFile]]:
    """Pairs of a row of ours and one before it whose texts are likely alike, and the shingles of all of them."""
    bands = Bands.for_threshold(config.threshold, config.num_permutations)
    with SignatureFile(scratch / f"{kind}_signatures", corpus.num_rows, bands) as signatures:
        present = corpus.fill(signatures, kind) & (firsts == np.arange(corpus.num_rows))
        rows = corpus.order[present[corpus.order]]
        later, earlier = (rows[places] for places in likely_pairs(signatures, rows, config.threshold))
    ours = later >= corpus.num_earlier
    later, earlier = later[ours], earlier[ours]
    with ShingleFile(scratch / f"{kind}_shingles") as shingles:
        _add_shingles(corpus, np.union1d(later, earlier), kind, config, shingles)
        yield zip(map(int, later), map(int, earlier), strict=True), shingles


def _add_shingles(corpus: Corpus, rows: Places, kind: Kind, config: DuplicatesConfig, shingles: ShingleFile) -> None:
    wanted = np.zeros(corpus.num_rows, bool)
    wanted[rows] = True
    for number, part in enumerate(corpus.parts):
        span = corpus.rows_of(number)
        numbers = np.flatnonzero(wanted[span]) + span.start
        for row, texts in zip(numbers, read_texts(part.texts, wanted[span]), strict=True):
            text = texts.prompt_content if kind == "prompt" else texts.row_content
            shingles.add(int(row), shingle_hashes(text, config.shingle_words))


class _Clusters:
    """Disjoint sets of numbers from 0 in one array, 4 bytes each; the root of a set is its smallest member."""

    def __init__(self, size: int) -> None:
        self._parents = np.arange(size, dtype=np.int32)

    def joined(self, first: int, second: int) -> bool:
        return self._root(first) == self._root(second)

    def join(self, first: int, second: int) -> None:
        low, high = sorted((self._root(first), self._root(second)))
        self._parents[high] = low

    def roots(self) -> npt.NDArray[np.int32]:
        while (above := self._parents[self._parents]).tobytes() != self._parents.tobytes():
            self._parents = above
        return self._parents

    def _root(self, member: int) -> int:
        parents = self._parents
        while parents[member] != member:
            parents[member] = parents[parents[member]]
            member = int(parents[member])
        return member
