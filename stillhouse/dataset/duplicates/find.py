"""Finds duplicate rows and clusters of similar prompts, independently of the order of rows and of shards.

Near-duplicates are pairs that signatures propose, decided by the exact Jaccard similarity of their shingles: at a
threshold of 0.85 an estimate from 128 hashes errs by 0.03, which would lose half of the pairs just above it. Shingles
of all candidates may not fit into memory and lie in a scratch file. Comparing a pair takes 10 us, and only pairs whose
estimate is close to the threshold or above get that far.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stillhouse.config.dataset import Comparison
from stillhouse.dataset.duplicates.bands import Bands, Places, banded_signatures, likely_pairs
from stillhouse.dataset.duplicates.corpus import Corpus, CorpusFile, TextKind, earlier_files
from stillhouse.dataset.duplicates.signatures import read_texts, shingle_hashes
from stillhouse.dataset.schema import DUPLICATE_COLUMNS, CandidateShard, arrow_schema
from stillhouse.dataset.words import Hashes
from stillhouse.store.atomic import replaced_atomically

_DUPLICATE: Final = np.dtype([("original", np.int64), ("is_exact", bool), ("similarity", np.float64)])
"""The row that a row of the corpus repeats, -1 for none, and how."""


def find_duplicates(shards: Sequence[CandidateShard], config: Comparison, folder: Path) -> list[Path]:
    """Write a Parquet file of `schema.DUPLICATE_COLUMNS` for each shard, row-aligned with it; return their paths.

    Rows of earlier datasets precede ours, which are ordered by prompt id, sample index and id. An exact duplicate names
    the first of its equals, even if that one nearly repeats a third; a near-duplicate names a row that repeats none. A
    row without sampled text repeats nothing, and a rollout that occurs twice does not repeat itself.

    The shards' signatures were made under the same `config`. Scratch files in `folder` take about 1 kB a row and a
    likely duplicate. Raises ConfigError if the threshold is too low; InputError if an earlier dataset cannot be read.
    """
    if not shards:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder, prefix=".duplicates-") as name:
        scratch = Path(name)
        earlier = earlier_files(config, scratch)
        corpus = Corpus([*earlier, *(CorpusFile(shard.signatures, shard.candidates) for shard in shards)])
        duplicates = _duplicates(corpus, config, scratch)
        clusters = prompt_clusters(corpus, config, scratch)
    paths = [folder / f"duplicates-{number:05}.parquet" for number in range(len(shards))]
    for number, path in enumerate(paths):
        table = _table(corpus, duplicates, clusters, corpus.rows_of(len(earlier) + number))
        with replaced_atomically(path) as work:
            pq.write_table(table, work, compression="zstd")
    return paths


def _duplicates(corpus: Corpus, config: Comparison, scratch: Path) -> npt.NDArray[np.void]:
    firsts = corpus.firsts("row", ours_only=False)
    duplicates = np.full(corpus.num_rows, np.array((-1, False, 0.0), _DUPLICATE))
    if config.near:
        for row, (original, similarity) in near_rows(corpus, firsts, config, scratch).items():
            duplicates[row] = original, False, similarity
    rows = np.flatnonzero(firsts != np.arange(corpus.num_rows))
    is_same = pc.equal(corpus.ids.take(pa.array(rows)), corpus.ids.take(pa.array(firsts[rows]))).to_numpy()
    is_same &= firsts[rows] >= corpus.num_earlier
    equal, same = rows[~is_same], rows[is_same]
    duplicates["original"][equal] = firsts[equal]
    duplicates["is_exact"][equal] = True
    duplicates["similarity"][equal] = 1.0
    duplicates[same] = duplicates[firsts[same]]
    return duplicates


def _table(corpus: Corpus, duplicates: npt.NDArray[np.void], clusters: npt.NDArray[np.int32], rows: slice) -> pa.Table:
    original, is_exact, similarity = (duplicates[name][rows].copy() for name in _DUPLICATE.names or ())
    is_distinct = original < 0
    sources = pa.array([file.source for file in corpus.files], pa.string())
    files = np.searchsorted(corpus.starts, original, side="right") - 1
    columns = [
        corpus.prompt_ids.take(pa.array(clusters[corpus.prompts[rows]])),
        corpus.ids.take(pa.array(original, mask=is_distinct)),
        pa.array(np.where(is_exact, "exact", "near"), pa.string(), mask=is_distinct),
        pa.array(similarity, mask=is_distinct),
        sources.take(pa.array(files, mask=is_distinct)),
    ]
    return pa.Table.from_arrays(columns, schema=arrow_schema(DUPLICATE_COLUMNS))


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
        distinct = np.unique(hashes.astype(_HASH))
        self._spans[row] = self._end, distinct.nbytes
        self._file.write(distinct.tobytes())
        self._end += distinct.nbytes

    def jaccard(self, first: int, second: int) -> float:
        """Return the Jaccard similarity of two rows that were added."""
        left, right = self._read(first), self._read(second)
        shared = len(np.intersect1d(left, right, assume_unique=True))
        return shared / max(1, len(left) + len(right) - shared)

    def _read(self, row: int) -> npt.NDArray[np.uint32]:
        self._file.flush()
        start, size = self._spans[row]
        return np.frombuffer(os.pread(self._file.fileno(), size, start), _HASH)


def near_rows(corpus: Corpus, firsts: Places, config: Comparison, scratch: Path) -> dict[int, tuple[int, float]]:
    """Return the original, and their similarity, of each row that nearly repeats an earlier one in the corpus's order.

    Exact duplicates are left out. A row is compared only with originals, so that nothing is dropped for its similarity
    to a dropped row: similarity is not transitive, and a chain of small changes may lead anywhere. The first similar
    original counts.

    `firsts` are the first of each row's exact duplicates, as `Corpus.firsts` returns.
    """
    duplicates: dict[int, tuple[int, float]] = {}
    with _likely_pairs(corpus, firsts, "row", config, scratch) as (pairs, shingles):
        # Sorted by the later row, so it is known whether the earlier one is an original.
        for row, before in pairs:
            if row not in duplicates and before not in duplicates:
                similarity = shingles.jaccard(row, before)
                if similarity >= config.threshold:
                    duplicates[row] = before, similarity
    return duplicates


def prompt_clusters(corpus: Corpus, config: Comparison, scratch: Path) -> npt.NDArray[np.int32]:
    """Return for each of `corpus.prompt_ids` the index of the first prompt of its cluster of similar prompts.

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
    corpus: Corpus, firsts: Places, kind: TextKind, config: Comparison, scratch: Path
) -> Iterator[tuple[Iterator[tuple[int, int]], ShingleFile]]:
    """Yield pairs of one of our rows and an earlier one whose texts are likely similar, and the shingles of all."""
    bands = Bands.for_threshold(config.threshold)
    signatures = banded_signatures(scratch / f"{kind}_signatures", corpus.num_rows, bands)
    present = corpus.fill(signatures, kind) & (firsts == np.arange(corpus.num_rows))
    rows = corpus.order[present[corpus.order]]
    later, earlier = (rows[places] for places in likely_pairs(signatures, rows, config.threshold))
    ours = later >= corpus.num_earlier
    later, earlier = later[ours], earlier[ours]
    with ShingleFile(scratch / f"{kind}_shingles") as shingles:
        rows = np.union1d(later, earlier)
        for number, file in enumerate(corpus.files):
            span = corpus.rows_of(number)
            here = rows[np.searchsorted(rows, span.start) : np.searchsorted(rows, span.stop)]
            for row, texts in zip(here.tolist(), read_texts(file.texts, (here - span.start).tolist()), strict=True):
                text = texts.prompt_content if kind == "prompt" else texts.row_content
                shingles.add(row, shingle_hashes(text))
        yield zip(map(int, later), map(int, earlier), strict=True), shingles


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
