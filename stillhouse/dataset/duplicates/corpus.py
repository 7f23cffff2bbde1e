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

from stillhouse.config import DuplicatesConfig
from stillhouse.dataset.duplicates.bands import Places, SignatureFile
from stillhouse.dataset.duplicates.signatures import SIGNATURE_SCHEMA, SIGNATURE_TYPE, signatures_of
from stillhouse.dataset.duplicates.texts import read_texts
from stillhouse.errors import InputError

Kind = Literal["prompt", "row"]
_NAMES: Final = ["id", "prompt_id", "sample_index"]
_BATCH_ROWS: Final = 8192


class Part(NamedTuple):
    """Row-aligned files of a part of the corpus."""

    signatures: Path
    """Columns `SIGNATURE_SCHEMA`."""
    texts: Path
    """A Parquet file with a column `messages`."""
    source: str | None = None
    """The earlier dataset it belongs to; None for the rows in question."""


class Corpus:
    """Rows of all parts, numbered through.

    Args:
        parts: Those of earlier datasets first.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts
        tables = [pq.read_table(part.signatures, columns=_NAMES) for part in parts]
        self.starts = np.cumsum([0, *(len(table) for table in tables)])
        """First row of each part, and the end of the last."""
        self.num_rows = int(self.starts[-1])
        self.num_earlier = int(self.starts[sum(part.source is not None for part in parts)])
        """Rows of earlier datasets, which come first."""
        names = pa.concat_tables(tables)
        self.ids: pa.ChunkedArray = names["id"]
        ours = names.slice(self.num_earlier)
        by_name = pc.sort_indices(ours, [(name, "ascending") for name in ("prompt_id", "sample_index", "id")])
        self.order: Places = np.append(
            np.arange(self.num_earlier), by_name.to_numpy().astype(np.int64) + self.num_earlier
        )
        """Row numbers in the order that decides which of two stands: earlier datasets as they are, then by prompt id,
        sample index and id, which do not depend on shards."""
        self.prompt_ids, self.prompts = _coded(ours["prompt_id"], by_name)
        """Distinct prompt ids, sorted, and for each row the place of its own there; -1 for rows of earlier datasets."""
        self.prompts = np.append(np.full(self.num_earlier, -1, np.int32), self.prompts)

    def rows_of(self, part: int) -> slice:
        """Row numbers of a part."""
        return slice(int(self.starts[part]), int(self.starts[part + 1]))

    def firsts(self, kind: Kind, *, ours_only: bool) -> Places:
        """For each row, the first in order whose text has the same hash: itself, where it has none or is the first."""
        hashes, present = self._hashes(f"{kind}_hash")
        if ours_only:
            present[: self.num_earlier] = False
        rows = self.order[present[self.order]]
        # Both sorts are stable, so that equals stay in order.
        rows = rows[np.lexsort(hashes[rows].T)]
        opens = np.append(True, (hashes[rows[1:]] != hashes[rows[:-1]]).any(axis=1)) if len(rows) else np.empty(0, bool)
        firsts = np.arange(self.num_rows)
        firsts[rows] = rows[opens][np.cumsum(opens) - 1]
        return firsts

    def fill(self, file: SignatureFile, kind: Kind) -> npt.NDArray[np.bool_]:
        """Copies all signatures of a kind to `file`; whether each row has one."""
        present = np.zeros(self.num_rows, bool)
        row = 0
        for column in self._columns(f"{kind}_signature"):
            present[row : row + len(column)] = column.is_valid()
            values = np.frombuffer(b"".join(column.drop_null().to_pylist()), SIGNATURE_TYPE)
            if len(values):
                places = np.flatnonzero(present[row : row + len(column)])
                signatures = np.zeros((len(column), len(values) // len(places)), SIGNATURE_TYPE)
                signatures[places] = values.reshape(len(places), -1)
                file.write(row, signatures)
            row += len(column)
        return present

    def _hashes(self, name: str) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
        hashes = np.zeros((self.num_rows, 2), np.uint64)
        present = np.zeros(self.num_rows, bool)
        row = 0
        for column in self._columns(name):
            rows = slice(row, row + len(column))
            present[rows] = column.is_valid()
            hashes[rows][present[rows]] = np.frombuffer(b"".join(column.drop_null().to_pylist()), "<u8").reshape(-1, 2)
            row += len(column)
        return hashes, present

    def _columns(self, name: str) -> Iterator[pa.Array]:
        for part in self.parts:
            # Or row groups stay in memory once they are read.
            with pq.ParquetFile(part.signatures, pre_buffer=False) as file:
                for batch in file.iter_batches(_BATCH_ROWS, columns=[name]):
                    yield batch.column(0)


def _coded(names: pa.ChunkedArray, order: pa.Array) -> tuple[pa.Array, npt.NDArray[np.int32]]:
    """Distinct names, sorted, and the place of each name among them; `order` sorts the names."""
    ordered = names.take(order)
    opens = np.ones(len(ordered), bool)
    if len(ordered):
        opens[1:] = pc.not_equal(ordered.slice(1), ordered.slice(0, len(ordered) - 1)).to_numpy()
    places = np.empty(len(ordered), np.int32)
    places[order.to_numpy()] = np.cumsum(opens) - 1
    return ordered.filter(pa.array(opens)), places


_KEPT_FILES: Final = ("train.parquet", "validation.parquet")
_BATCH_ROWS: Final = 1024


def earlier_parts(config: DuplicatesConfig, scratch: Path) -> list[Part]:
    """The files of `config.earlier`, in order, their signatures computed into the folder `scratch`.

    Of a dataset's folder these are the rows that were kept. A row without an id goes by its file and number.

    Raises:
        InputError: A dataset is missing, or a file of it is no Parquet file with a column `messages`.
    """
    parts: list[Part] = []
    for source in config.earlier:
        for path in _files(source):
            part = Part(scratch / f"earlier-{len(parts)}.parquet", path, source)
            _write_signatures(part, config)
            parts.append(part)
    return parts


def _files(source: str) -> list[Path]:
    path = Path(source).expanduser()
    files = [file for name in _KEPT_FILES if (file := path / name).exists()] if path.is_dir() else [path]
    if not files:
        raise InputError(
            f"dataset.duplicates.earlier names the folder {path}, which holds neither {' nor '.join(_KEPT_FILES)}; "
            "expected a folder that the stage `dataset` wrote, or a Parquet file"
        )
    for file in files:
        _check(file)
    return files


def _check(file: Path) -> None:
    expected = "expected a dataset's folder or a Parquet file with a column `messages`; mend or remove the entry"
    try:
        columns = pq.read_schema(file).names
    except FileNotFoundError as error:
        raise InputError(f"dataset.duplicates.earlier names {file}, which is missing; {expected}") from error
    except (OSError, pa.ArrowException) as error:
        raise InputError(
            f"dataset.duplicates.earlier names {file}, which is no Parquet: {error}; {expected}"
        ) from error
    if "messages" not in columns:
        raise InputError(
            f"dataset.duplicates.earlier names {file}, whose columns are {', '.join(columns) or 'none'}; {expected}"
        )


def _write_signatures(part: Part, config: DuplicatesConfig) -> None:
    ids, texts = _ids(part.texts), read_texts(part.texts)
    with pq.ParquetWriter(part.signatures, SIGNATURE_SCHEMA) as writer:
        while batch := list(islice(texts, _BATCH_ROWS)):
            writer.write_batch(signatures_of([(next(ids), None, None) for _ in batch], batch, config))


def _ids(path: Path) -> Iterator[str]:
    # Or row groups stay in memory once they are read.
    with pq.ParquetFile(path, pre_buffer=False) as file:
        if "id" not in file.schema_arrow.names:
            yield from (f"{path.name}, row {number}" for number in range(file.metadata.num_rows))
            return
        for batch in file.iter_batches(_BATCH_ROWS, columns=["id"]):
            yield from map(str, batch.column(0).to_pylist())
