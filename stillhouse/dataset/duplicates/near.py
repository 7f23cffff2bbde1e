"""Near-duplicates: pairs that signatures propose, decided by the exact Jaccard similarity of their shingles.

At a threshold of 0.85 an estimate from 128 hashes errs by 0.03, which would lose half of the pairs just above it.
Shingles of all candidates may not fit into memory and lie in a scratch file; comparing a pair takes 10 us, and only
pairs whose estimate is close to the threshold or above get that far.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from stillhouse.config import DuplicatesConfig
from stillhouse.dataset.duplicates.bands import Bands, Places, SignatureFile, likely_pairs
from stillhouse.dataset.duplicates.corpus import Corpus, TextKind
from stillhouse.dataset.duplicates.signatures import shingle_hashes
from stillhouse.dataset.duplicates.texts import read_texts
from stillhouse.dataset.words import Hashes

_HASH: Final = np.dtype("<u4")
"""Half of a shingle's hash, to save disk: among a thousand shingles two collide in one of 10,000 texts."""


class ShingleFile:
    """Sets of shingles on disk, by row number."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b")
        self._spans: dict[int, tuple[int, int]] = {}
        self._end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def add(self, row: int, hashes: Hashes) -> None:
        """Stores the shingles of a row."""
        distinct = np.unique(hashes.astype(_HASH))
        self._spans[row] = self._end, distinct.nbytes
        self._file.write(distinct.tobytes())
        self._end += distinct.nbytes

    def jaccard(self, first: int, second: int) -> float:
        """Jaccard similarity of two rows that were added."""
        left, right = self._read(first), self._read(second)
        shared = len(np.intersect1d(left, right, assume_unique=True))
        return shared / max(1, len(left) + len(right) - shared)

    def _read(self, row: int) -> npt.NDArray[np.uint32]:
        self._file.flush()
        start, size = self._spans[row]
        return np.frombuffer(os.pread(self._file.fileno(), size, start), _HASH)


class NearDuplicate(NamedTuple):
    """The original of a near-duplicate."""

    original: int
    """Number of a row that repeats none."""
    similarity: float
    """Jaccard similarity of their shingles."""


def near_rows(corpus: Corpus, firsts: Places, config: DuplicatesConfig, scratch: Path) -> dict[int, NearDuplicate]:
    """Near-duplicates of an earlier row in the corpus's order, by row number; exact duplicates are left out.

    A row is compared only with originals, so that nothing is dropped for its similarity to a dropped row: similarity is
    not transitive, and a chain of small changes may lead anywhere. The first similar original counts.

    `firsts` are the first of each row's exact duplicates, as `Corpus.firsts` returns.
    """
    duplicates: dict[int, NearDuplicate] = {}
    with _likely_pairs(corpus, firsts, "row", config, scratch) as (pairs, shingles):
        # Sorted by the later row, so it is known whether the earlier one is an original.
        for row, before in pairs:
            if row not in duplicates and before not in duplicates:
                similarity = shingles.jaccard(row, before)
                if similarity >= config.threshold:
                    duplicates[row] = NearDuplicate(before, similarity)
    return duplicates


def prompt_clusters(corpus: Corpus, config: DuplicatesConfig, scratch: Path) -> npt.NDArray[np.int32]:
    """For each of `corpus.prompt_ids` the index of the first prompt of its cluster of similar prompts.

    Similarity is transitive here, since a split must not separate similar prompts.
    """
    firsts = corpus.firsts("prompt", ours_only=True)
    clusters = _DisjointSets(len(corpus.prompt_ids))
    ours = slice(corpus.num_earlier, None)
    links = np.stack((corpus.prompts[ours], corpus.prompts[firsts[ours]]))
    for first, second in np.unique(links[:, links[0] != links[1]], axis=1).T:
        clusters.join(int(first), int(second))
    if config.near:
        with _likely_pairs(corpus, firsts, "prompt", config, scratch) as (pairs, shingles):
            for row, before in pairs:
                first, second = int(corpus.prompts[row]), int(corpus.prompts[before])
                if not clusters.joined(first, second) and shingles.jaccard(row, before) >= config.threshold:
                    clusters.join(first, second)
    return clusters.roots()


@contextmanager
def _likely_pairs(
    corpus: Corpus, firsts: Places, kind: TextKind, config: DuplicatesConfig, scratch: Path
) -> Iterator[tuple[Iterator[tuple[int, int]], ShingleFile]]:
    """Pairs of one of our rows and an earlier row whose texts are likely similar, and the shingles of all of them."""
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


def _add_shingles(
    corpus: Corpus, rows: Places, kind: TextKind, config: DuplicatesConfig, shingles: ShingleFile
) -> None:
    selected = np.zeros(corpus.num_rows, bool)
    selected[rows] = True
    for number, file in enumerate(corpus.files):
        span = corpus.rows_of(number)
        numbers = np.flatnonzero(selected[span]) + span.start
        for row, texts in zip(numbers, read_texts(file.texts, selected[span]), strict=True):
            text = texts.prompt_content if kind == "prompt" else texts.row_content
            shingles.add(int(row), shingle_hashes(text, config.shingle_words))


class _DisjointSets:
    """Union-find over numbers from 0, 4 bytes each; the root of a set is its smallest member."""

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
