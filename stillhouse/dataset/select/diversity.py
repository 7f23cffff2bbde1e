"""Diversity: so many rows, of prompts that differ as much from each other as their embeddings tell.

Prompts are taken greedily, each the farthest from all taken so far: the 2-approximation of the k-centre problem
(Gonzalez 1985, "Clustering to minimize the maximum intercluster distance"). The first is the prompt of lowest hash.
Distance is one minus the cosine, which orders unit vectors as Euclidean distance does. All rows of a prompt that is
taken stay, but for the last: of it the preferred ones, up to the number asked for. Prompts without an embedding, and
those without text, come last, in the order of their hashes.

Taking k of n prompts with embeddings of d numbers costs O(n k d) operations, nearly all in matrix products, and n d
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
"""Prompts whose distances to each other are known at once."""
_OUT: Final = np.float32(-np.inf)
"""The distance of a place that cannot be taken (any more)."""


def not_diverse(rows: pd.DataFrame, alive: Mask, shards: Sequence[CandidateShard], most: int | None) -> Mask:
    """Rows of `alive` beyond the `most` that differ most; None, or fewer rows than that, drops none.

    Raises:
        InputError: no row of `alive` has an embedding.
    """
    if most is None or np.count_nonzero(alive) <= most:
        return np.zeros(len(rows), bool)
    # Preference keeps prompts together, in the order of their hashes.
    ordered = rows.loc[alive, ["prompt", "preference"]].sort_values("preference")
    sizes = ordered.groupby("prompt").size().tolist()
    with tempfile.TemporaryFile() as scratch:
        vectors, is_known = _embeddings(shards, ordered.drop_duplicates("prompt").index.to_numpy(), scratch)
        taken = _taken(chain(farthest_first(vectors, is_known), np.flatnonzero(~is_known)), sizes, most)
    rank = np.full(len(sizes), len(taken))
    rank[taken] = np.arange(len(taken))
    dropped = alive.copy()
    dropped[ordered.index[np.argsort(np.repeat(rank, sizes), kind="stable")[:most]]] = False
    return dropped


def farthest_first(vectors: Vectors, is_known: Mask) -> Iterator[int]:
    """The places where `is_known`, from the lowest on each the farthest from all before it.

    A place only comes nearer to those taken. So the next ones are among the `_BLOCK` farthest for as long as these stay
    farther than all others are, and only then is every place looked at again.

    Args:
        vectors: Unit vectors, one a row.
        is_known: Which rows take part, at least one.
    """
    nearest = np.where(is_known, np.float32(np.inf), _OUT)
    taken = [int(is_known.argmax())]
    yield taken[0]
    while True:
        _measure(nearest, vectors, taken)
        block = np.sort(np.argpartition(-nearest, min(_BLOCK, len(nearest)) - 1)[:_BLOCK])
        in_block, apart = nearest[block], 1 - vectors[block] @ vectors[block].T
        bound, taken = max(np.delete(nearest, block).max(initial=_OUT), -1), []
        while (farthest := int(in_block.argmax())) >= 0 and in_block[farthest] >= bound:
            taken.append(int(block[farthest]))
            yield taken[-1]
            in_block = np.minimum(in_block, apart[farthest])
            in_block[farthest] = _OUT
        if not taken:
            return


def _measure(nearest: Vectors, vectors: Vectors, taken: Sequence[int]) -> None:
    """Brings `nearest`, each place's distance to the nearest one taken, up to date with those just `taken`."""
    centres = vectors[taken].T
    for start in range(0, len(vectors), _BLOCK):
        part = slice(start, start + _BLOCK)
        nearest[part] = np.minimum(nearest[part], 1 - (vectors[part] @ centres).max(axis=1))
    nearest[taken] = _OUT


def _taken(prompts: Iterable[int], sizes: Sequence[int], most: int) -> list[int]:
    """The first of `prompts` that together have at least `most` rows."""
    taken, rows_left = [], most
    for prompt in prompts:
        if rows_left <= 0:
            break
        taken.append(prompt)
        rows_left -= sizes[prompt]
    return taken


def _embeddings(
    shards: Sequence[CandidateShard], heads: npt.NDArray[np.int64], scratch: IO[bytes]
) -> tuple[Vectors, Mask]:
    """The embeddings of the rows `heads` as unit vectors in `scratch`, and which of them have one."""
    vectors, is_known = np.empty((0, 0), np.float32), np.zeros(len(heads), bool)
    for places, found in _found(shards, heads):
        if not is_known.any():
            vectors = np.memmap(scratch, np.float32, shape=(len(heads), found.shape[1]))
        if found.shape[1] != vectors.shape[1]:
            raise InputError(
                f"embeddings have {vectors.shape[1]} numbers in one file and {found.shape[1]} in another; expected as "
                "many in all. Embed the prompts again, with one model"
            )
        norms = np.linalg.norm(found, axis=1, keepdims=True)
        vectors[places] = found / np.where(norms > 0, norms, 1)
        is_known[places] = norms[:, 0] > 0
    if not is_known.any():
        raise InputError(
            f"none of {len(heads)} prompts has an embedding, which dataset.selection.max_diverse_rows goes by. Embed "
            "the prompts, or leave it out"
        )
    return vectors, is_known


def _found(
    shards: Sequence[CandidateShard], heads: npt.NDArray[np.int64]
) -> Iterator[tuple[npt.NDArray[np.int64], Vectors]]:
    """Places in `heads` with the embeddings of the rows there, batch by batch; rows without one are left out."""
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
