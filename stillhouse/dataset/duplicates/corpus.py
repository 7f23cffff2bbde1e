"""All rows that are compared, from shards and from earlier datasets, as a few arrays.

They take about 200 bytes a row, most of it ids, and twice that while they are sorted. Texts and signatures stay on
disk.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stillhouse.config.dataset import Comparison
from stillhouse.dataset.duplicates.bands import Banded, Places
from stillhouse.dataset.duplicates.signatures import (
    NUM_HASHES,
    SIGNATURE_SCHEMA,
    SIGNATURE_TYPE,
    read_texts,
    signatures_of,
)
from stillhouse.dataset.schema import KEPT_FILES
from stillhouse.errors import InputError

TextKind = Literal["prompt", "row"]
_NAMES: Final = ["id", "prompt_id", "sample_index"]
_BATCH_ROWS: Final = 8192
_TEXT_BATCH_ROWS: Final = 1024


class CorpusFile(NamedTuple):
    """Row-aligned files of a part of the corpus."""

    signatures: Path
    """Columns `SIGNATURE_SCHEMA`."""
    texts: Path
    """A Parquet file with a column `messages`."""
    source: str | None = None
    """The earlier dataset it belongs to; None for a shard of ours."""


class Corpus:
    """Rows of all files, numbered consecutively; files of earlier datasets come first."""

    def __init__(self, files: Sequence[CorpusFile]) -> None:
        self.files = files
        tables = [pq.read_table(file.signatures, columns=_NAMES) for file in files]
        self.starts = np.cumsum([0, *(len(table) for table in tables)])
        """First row of each file, and the end of the last."""
        self.num_rows = int(self.starts[-1])
        self.num_earlier = int(self.starts[sum(file.source is not None for file in files)])
        """Rows of earlier datasets, which come first."""
        names = pa.concat_tables(tables)
        self.ids: pa.ChunkedArray = names["id"]
        ours = names.slice(self.num_earlier)
        by_name = pc.sort_indices(ours, [(name, "ascending") for name in ("prompt_id", "sample_index", "id")])
        self.order: Places = np.append(
            np.arange(self.num_earlier), by_name.to_numpy().astype(np.int64) + self.num_earlier
        )
        """Row numbers in order of precedence: earlier datasets as they are, then ours by prompt id, sample index and
        id, independently of shards."""
        self.prompt_ids: pa.Array = ours["prompt_id"].unique().sort()
        ranks = pc.rank(ours["prompt_id"], tiebreaker="dense").to_numpy().astype(np.int32)
        self.prompts = np.append(np.full(self.num_earlier, -1, np.int32), ranks - 1)
        """Index of each row's prompt among `prompt_ids`; -1 for earlier datasets."""

    def rows_of(self, file: int) -> slice:
        return slice(int(self.starts[file]), int(self.starts[file + 1]))

    def firsts(self, kind: TextKind, *, ours_only: bool) -> Places:
        """Return for each row the first one in order with an equal text: itself if it has no text or is the first."""
        hashes = np.zeros((self.num_rows, 2), np.uint64)
        present = np.zeros(self.num_rows, bool)
        for rows, values in self._binary(f"{kind}_hash"):
            hashes[rows], present[rows] = np.frombuffer(values, "<u8").reshape(-1, 2), True
        if ours_only:
            present[: self.num_earlier] = False
        rows = self.order[present[self.order]]
        # Both sorts are stable, so that equals stay in order.
        rows = rows[np.lexsort(hashes[rows].T)]
        opens = np.append(True, (hashes[rows[1:]] != hashes[rows[:-1]]).any(axis=1)) if len(rows) else np.empty(0, bool)
        firsts = np.arange(self.num_rows)
        firsts[rows] = rows[opens][np.cumsum(opens) - 1]
        return firsts

    def fill(self, signatures: Banded, kind: TextKind) -> npt.NDArray[np.bool_]:
        """Copy all signatures of a kind; return whether each row has one."""
        present = np.zeros(self.num_rows, bool)
        number, _, width = signatures.shape
        for rows, values in self._binary(f"{kind}_signature"):
            present[rows] = True
            whole = np.frombuffer(values, SIGNATURE_TYPE).reshape(-1, NUM_HASHES)
            signatures[:, rows] = whole[:, : number * width].reshape(-1, number, width).swapaxes(0, 1)
        return present

    def _binary(self, name: str) -> Iterator[tuple[Places, bytes]]:
        """Yield the rows that have a value in a binary column, batch by batch, and their values joined."""
        start = 0
        for file in self.files:
            # `pre_buffer` would keep row groups in memory once they are read.
            with pq.ParquetFile(file.signatures, pre_buffer=False) as parquet:
                for batch in parquet.iter_batches(_BATCH_ROWS, columns=[name]):
                    column = batch.column(0)
                    rows = start + np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
                    yield rows, b"".join(column.drop_null().to_pylist())
                    start += len(column)


def earlier_files(config: Comparison, scratch: Path) -> list[CorpusFile]:
    """Return the files of `config.earlier` in order, with signatures computed into the folder `scratch`.

    A dataset's folder counts with its kept rows. A row without an id is named by its file and number. Raises InputError
    if a dataset is missing, or a file of it is no Parquet file with a column `messages`.
    """
    files: list[CorpusFile] = []
    for source in config.earlier:
        for path in _dataset_files(source):
            file = CorpusFile(scratch / f"earlier-{len(files)}.parquet", path, source)
            files.append(file)
            ids, texts = _ids(path), read_texts(path)
            with pq.ParquetWriter(file.signatures, SIGNATURE_SCHEMA) as writer:
                while batch := list(islice(texts, _TEXT_BATCH_ROWS)):
                    writer.write_batch(signatures_of([(next(ids), None, None) for _ in batch], batch, near=config.near))
    return files


def _dataset_files(source: str) -> list[Path]:
    path = Path(source).expanduser()
    files = [file for name in KEPT_FILES if (file := path / name).exists()] if path.is_dir() else [path]
    if not files:
        raise InputError(
            f"dataset.duplicates.earlier names the folder {path}, which holds neither {' nor '.join(KEPT_FILES)}; "
            "expected a folder that the stage `dataset` wrote, or a Parquet file"
        )
    for file in files:
        _check(file)
    return files


def _check(file: Path) -> None:
    try:
        columns = pq.read_schema(file).names
        seen = None if "messages" in columns else f"whose columns are {', '.join(columns) or 'none'}"
    except FileNotFoundError:
        seen = "which is missing"
    except (OSError, pa.ArrowException) as error:
        seen = f"which is no Parquet: {error}"
    if seen is not None:
        raise InputError(
            f"dataset.duplicates.earlier names {file}, {seen}; expected a dataset's folder or a Parquet file with a "
            "column `messages`; mend or remove the entry"
        )


def _ids(path: Path) -> Iterator[str]:
    with pq.ParquetFile(path, pre_buffer=False) as file:
        if "id" not in file.schema_arrow.names:
            yield from (f"{path.name}, row {number}" for number in range(file.metadata.num_rows))
            return
        for batch in file.iter_batches(_TEXT_BATCH_ROWS, columns=["id"]):
            yield from map(str, batch.column(0).to_pylist())
