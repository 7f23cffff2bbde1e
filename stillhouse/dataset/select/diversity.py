"""Diversity: a number of rows from prompts whose embeddings differ most.

Prompts are selected greedily, each the farthest from all selected so far: the 2-approximation of the k-centre problem
(Gonzalez 1985, "Clustering to minimize the maximum intercluster distance"). The first is the prompt of lowest hash.
Distance is one minus the cosine, which orders unit vectors as Euclidean distance does. All rows of a selected prompt
are kept, except that of the last one only as many preferred rows as are needed. Prompts without an embedding come last,
in the order of their hashes.

Selecting k of n prompts with embeddings of d numbers costs O(n k d) operations, nearly all in matrix products, and n d
float32 numbers in a scratch file; memory holds a few blocks of `_BLOCK` of them and 8 n bytes.
"""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import IO, Final

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from stillhouse.dataset.schema import CandidateShard
from stillhouse.dataset.select.choices import Mask
from stillhouse.errors import InputError

Vectors = npt.NDArray[np.float32]

_BLOCK: Final = 1024
"""Prompts whose mutual distances are held in memory."""
_OUT: Final = np.float32(-np.inf)
"""Distance of a prompt that cannot be selected (any more)."""


def not_diverse(rows: pd.DataFrame, remaining: Mask, shards: Sequence[CandidateShard], max_rows: int | None) -> Mask:
    """Rows of `remaining` beyond the `max_rows` that differ most; None drops none.

    Raises:
        InputError: no row of `remaining` has an embedding.
    """
    if max_rows is None or np.count_nonzero(remaining) <= max_rows:
        return np.zeros(len(rows), bool)
    # The preference order keeps prompts together, in the order of their hashes.
    ordered = rows.loc[remaining, ["prompt", "preference"]].sort_values("preference")
    sizes = ordered.groupby("prompt").size().tolist()
    with tempfile.TemporaryFile() as scratch:
        vectors, is_known = _embeddings(shards, ordered.drop_duplicates("prompt").index.to_numpy(), scratch)
        selected = _first_prompts(chain(farthest_first(vectors, is_known), np.flatnonzero(~is_known)), sizes, max_rows)
    rank = np.full(len(sizes), len(selected))
    rank[selected] = np.arange(len(selected))
    dropped = remaining.copy()
    dropped[ordered.index[np.argsort(np.repeat(rank, sizes), kind="stable")[:max_rows]]] = False
    return dropped


def farthest_first(vectors: Vectors, is_known: Mask) -> Iterator[int]:
    """Indices of the known vectors: the lowest first, then each the farthest from all before it.

    Distances to the selection only shrink. So the next ones are among the `_BLOCK` farthest as long as these stay
    farther than all others; only then are all distances computed again.

    `vectors` are unit vectors, one a row; at least one is known.
    """
    nearest = np.where(is_known, np.float32(np.inf), _OUT)
    selected = [int(is_known.argmax())]
    yield selected[0]
    while True:
        _update(nearest, vectors, selected)
        block = np.sort(np.argpartition(-nearest, min(_BLOCK, len(nearest)) - 1)[:_BLOCK])
        in_block, apart = nearest[block], 1 - vectors[block] @ vectors[block].T
        bound, selected = max(np.delete(nearest, block).max(initial=_OUT), -1), []
        while (farthest := int(in_block.argmax())) >= 0 and in_block[farthest] >= bound:
            selected.append(int(block[farthest]))
            yield selected[-1]
            in_block = np.minimum(in_block, apart[farthest])
            in_block[farthest] = _OUT
        if not selected:
            return


def _update(nearest: Vectors, vectors: Vectors, selected: Sequence[int]) -> None:
    """Lowers each vector's distance to the `nearest` selected one by those just selected."""
    centres = vectors[selected].T
    for start in range(0, len(vectors), _BLOCK):
        part = slice(start, start + _BLOCK)
        nearest[part] = np.minimum(nearest[part], 1 - (vectors[part] @ centres).max(axis=1))
    nearest[selected] = _OUT


def _first_prompts(prompts: Iterable[int], sizes: Sequence[int], num_rows: int) -> list[int]:
    """The first of `prompts` that together have at least `num_rows` rows."""
    selected: list[int] = []
    for prompt in prompts:
        if num_rows <= 0:
            break
        selected.append(prompt)
        num_rows -= sizes[prompt]
    return selected


def _embeddings(
    shards: Sequence[CandidateShard], heads: npt.NDArray[np.int64], scratch: IO[bytes]
) -> tuple[Vectors, Mask]:
    """Embeddings of the rows `heads` as unit vectors in `scratch`, and which of them have one."""
    vectors, is_known = np.empty((0, 0), np.float32), np.zeros(len(heads), bool)
    for places, batch in _batches(shards, heads):
        if not is_known.any():
            vectors = np.memmap(scratch, np.float32, shape=(len(heads), batch.shape[1]))
        if batch.shape[1] != vectors.shape[1]:
            raise InputError(
                f"embeddings have {vectors.shape[1]} numbers in one file and {batch.shape[1]} in another; expected as "
                "many in all. Embed the prompts again, with one model"
            )
        norms = np.linalg.norm(batch, axis=1, keepdims=True)
        vectors[places] = batch / np.where(norms > 0, norms, 1)
        is_known[places] = norms[:, 0] > 0
    if not is_known.any():
        raise InputError(
            f"none of {len(heads)} prompts has an embedding, which dataset.selection.max_diverse_rows goes by. Embed "
            "the prompts, or leave it out"
        )
    return vectors, is_known


def _batches(
    shards: Sequence[CandidateShard], heads: npt.NDArray[np.int64]
) -> Iterator[tuple[npt.NDArray[np.int64], Vectors]]:
    """Indices into `heads` with the embeddings of those rows, batch by batch; rows without one are skipped."""
    by_row = np.argsort(heads)
    start = 0
    for shard in shards:
        stop = start + pq.ParquetFile(shard.candidates).metadata.num_rows
        batches = [] if shard.embeddings is None else pq.ParquetFile(shard.embeddings).iter_batches(_BLOCK)
        for batch in batches:
            column = batch.column("embedding")
            low, high = np.searchsorted(heads, [start, start + len(column)], sorter=by_row)
            places = by_row[low:high]
            places = places[column.is_valid().to_numpy(zero_copy_only=False)[heads[places] - start]]
            if len(places):
                values = column.take(pa.array(heads[places] - start)).flatten()
                yield places, values.to_numpy(zero_copy_only=False).reshape(len(places), -1)
            start += len(column)
        start = stop
