"""Which rows of a dataset repeat others, and which prompts belong together.

The outcome depends on the set of rows and the config: neither their order nor their shards matter.
"""

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
from stillhouse.dataset.duplicates.corpus import Corpus, Part, earlier_parts
from stillhouse.dataset.duplicates.near import near_rows, prompt_clusters
from stillhouse.dataset.schema import DUPLICATE_COLUMNS, CandidateShard, arrow_schema
from stillhouse.store.atomic import replaced_atomically


class _Repeats(NamedTuple):
    """What each row repeats; all arrays have one value for each row of the corpus."""

    of: Places
    """-1 where it repeats none."""
    exactly: npt.NDArray[np.bool_]
    similarity: npt.NDArray[np.float64]


def find_duplicates(shards: Sequence[CandidateShard], config: DuplicatesConfig, folder: Path) -> list[Path]:
    """Writes a Parquet file with `schema.DUPLICATE_COLUMNS` for each shard, row-aligned with it; their paths in order.

    Rows of earlier datasets come before ours, ours go by prompt id, sample index and id. An exact duplicate names the
    first of its equals, even if that nearly repeats a third; a near-duplicate names a row that repeats none. A row in
    which the model wrote nothing repeats nothing, nor does a rollout that is there twice repeat itself.

    Args:
        shards: Their signatures made under the same `config`.
        config: How alike rows are found, and the earlier datasets.
        folder: Where to write; scratch files of about 1 kB a row, and as much for each likely duplicate, lie there
            meanwhile.

    Raises:
        ConfigError: `num_permutations` is too small for the threshold.
        InputError: An earlier dataset cannot be read.
    """
    if not shards:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder, prefix=".duplicates-") as name:
        scratch = Path(name)
        earlier = earlier_parts(config, scratch)
        corpus = Corpus([*earlier, *(Part(shard.signatures, shard.candidates) for shard in shards)])
        repeats = _repeats(corpus, config, scratch)
        clusters = prompt_clusters(corpus, config, scratch)
    paths = [folder / f"duplicates-{number:05}.parquet" for number in range(len(shards))]
    for number, path in enumerate(paths):
        table = _table(corpus, repeats, clusters, corpus.rows_of(len(earlier) + number))
        with replaced_atomically(path) as work:
            pq.write_table(table, work, compression="zstd")
    return paths


def _repeats(corpus: Corpus, config: DuplicatesConfig, scratch: Path) -> _Repeats:
    firsts = corpus.firsts("row", ours_only=False)
    repeats = _Repeats(
        of=np.full(corpus.num_rows, -1), exactly=np.zeros(corpus.num_rows, bool), similarity=np.zeros(corpus.num_rows)
    )
    if config.near:
        for row, (before, similarity) in near_rows(corpus, firsts, config, scratch).items():
            repeats.of[row], repeats.similarity[row] = before, similarity
    rows = np.flatnonzero(firsts != np.arange(corpus.num_rows))
    is_same = pc.equal(corpus.ids.take(pa.array(rows)), corpus.ids.take(pa.array(firsts[rows]))).to_numpy()
    is_same &= firsts[rows] >= corpus.num_earlier
    equal, same = rows[~is_same], rows[is_same]
    repeats.of[equal], repeats.exactly[equal], repeats.similarity[equal] = firsts[equal], True, 1.0
    for values in repeats:
        values[same] = values[firsts[same]]
    return repeats


def _table(corpus: Corpus, repeats: _Repeats, clusters: npt.NDArray[np.int32], rows: slice) -> pa.Table:
    of, exactly, similarity = (values[rows] for values in repeats)
    alone = of < 0
    sources = pa.array([part.source for part in corpus.parts], pa.string())
    parts = np.searchsorted(corpus.starts, of, side="right") - 1
    columns = [
        corpus.prompt_ids.take(pa.array(clusters[corpus.prompts[rows]])),
        corpus.ids.take(pa.array(of, mask=alone)),
        pa.array(np.where(exactly, "exact", "near"), pa.string(), mask=alone),
        pa.array(similarity, mask=alone),
        sources.take(pa.array(parts, mask=alone)),
    ]
    return pa.Table.from_arrays(columns, schema=arrow_schema(DUPLICATE_COLUMNS))
