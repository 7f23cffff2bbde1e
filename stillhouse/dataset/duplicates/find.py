"""Finds duplicate rows and clusters of similar prompts, independently of the order of rows and of shards."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stillhouse.config import DuplicatesConfig
from stillhouse.dataset.duplicates.bands import Places
from stillhouse.dataset.duplicates.corpus import Corpus, CorpusFile, earlier_files
from stillhouse.dataset.duplicates.near import near_rows, prompt_clusters
from stillhouse.dataset.schema import DUPLICATE_COLUMNS, CandidateShard, arrow_schema
from stillhouse.store.atomic import replaced_atomically


class _Duplicates(NamedTuple):
    """The original of each row; arrays have one value for each row of the corpus."""

    original: Places
    """-1 if the row repeats none."""
    is_exact: npt.NDArray[np.bool_]
    similarity: npt.NDArray[np.float64]


def find_duplicates(shards: Sequence[CandidateShard], config: DuplicatesConfig, folder: Path) -> list[Path]:
    """Writes a Parquet file of `schema.DUPLICATE_COLUMNS` for each shard, row-aligned with it; their paths in order.

    Rows of earlier datasets precede ours, which are ordered by prompt id, sample index and id. An exact duplicate names
    the first of its equals, even if that one nearly repeats a third; a near-duplicate names a row that repeats none. A
    row without sampled text repeats nothing, and a rollout that occurs twice does not repeat itself.

    Args:
        shards: with signatures made under the same `config`.
        config: similarity, and the earlier datasets.
        folder: where to write; scratch files there take about 1 kB a row and a likely duplicate.

    Raises:
        ConfigError: `num_permutations` is too small for the threshold.
        InputError: an earlier dataset cannot be read.
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


def _duplicates(corpus: Corpus, config: DuplicatesConfig, scratch: Path) -> _Duplicates:
    firsts = corpus.firsts("row", ours_only=False)
    num_rows = corpus.num_rows
    duplicates = _Duplicates(np.full(num_rows, -1), np.zeros(num_rows, bool), np.zeros(num_rows))
    original, is_exact, similarity = duplicates
    if config.near:
        for row, near in near_rows(corpus, firsts, config, scratch).items():
            original[row], similarity[row] = near
    rows = np.flatnonzero(firsts != np.arange(num_rows))
    is_same = pc.equal(corpus.ids.take(pa.array(rows)), corpus.ids.take(pa.array(firsts[rows]))).to_numpy()
    is_same &= firsts[rows] >= corpus.num_earlier
    equal, same = rows[~is_same], rows[is_same]
    original[equal], is_exact[equal], similarity[equal] = firsts[equal], True, 1.0
    for values in duplicates:
        values[same] = values[firsts[same]]
    return duplicates


def _table(corpus: Corpus, duplicates: _Duplicates, clusters: npt.NDArray[np.int32], rows: slice) -> pa.Table:
    original, is_exact, similarity = (values[rows] for values in duplicates)
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
