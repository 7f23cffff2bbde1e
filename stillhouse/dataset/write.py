"""Writes the files of a dataset from shards and a selection.

Rows stay Arrow from end to end and the JSON text of messages is never parsed, so that a change of thresholds costs a
copy. Time grows with the number of rows and memory does not; `benchmarks/dataset.py` measures both.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stillhouse.dataset.preferences import write_preferences
from stillhouse.dataset.schema import (
    CANDIDATE_COLUMNS,
    COLUMNS,
    DIFFICULTY_COLUMNS,
    DUPLICATE_COLUMNS,
    JUDGE_COLUMNS,
    CandidateShard,
    Column,
)
from stillhouse.dataset.select.select import Selection
from stillhouse.dataset.table import TableWriter, gathered
from stillhouse.errors import InputError

SPLITS: Final = ("train", "validation")
REJECTED: Final = "rejected"
PREFERENCES: Final = "preferences"
_MIN_ROWS: Final = 4096


def write_rows(shards: Sequence[CandidateShard], selection: Selection, folder: Path) -> dict[str, int]:
    """Fills `folder` with train.parquet, validation.parquet and rejected.parquet, and preferences.parquet for pairs.

    Rows keep the order of the shards. Memory holds a row group of each file, and the side files of one shard.

    Returns:
        Number of rows by file name without suffix.

    Raises:
        InputError: the files of a shard, or shards and selection, differ in their number of rows.
    """
    _check_length(shards, selection)
    with ExitStack() as stack:
        writers = {
            name: stack.enter_context(TableWriter(folder / f"{name}.parquet", COLUMNS)) for name in (*SPLITS, REJECTED)
        }
        first = 0
        for table in gathered(chain.from_iterable(map(_tables, shards)), _MIN_ROWS):
            rows = slice(first, first + table.num_rows)
            decided = _with_decisions(table, selection, rows)
            splits = np.where(selection.repeated[rows], np.int8(-2), selection.splits[rows])
            for split, name in enumerate((*SPLITS, REJECTED)):
                writers[name].write_table(decided.filter(pa.array(splits == (split if split < 2 else -1))))
            first = rows.stop
    num_rows = {name: writer.num_rows for name, writer in writers.items()}
    if len(selection.pairs):
        num_rows[PREFERENCES] = write_preferences(
            [shard.candidates for shard in shards], selection.pairs, folder / f"{PREFERENCES}.parquet"
        )
    return num_rows


def _check_length(shards: Sequence[CandidateShard], selection: Selection) -> None:
    num_rows = sum(pq.read_metadata(shard.candidates).num_rows for shard in shards)
    if num_rows != len(selection.splits):
        raise InputError(
            f"the shards hold {num_rows} rows, but {len(selection.splits)} were decided about; expected one decision "
            "for each row. Refresh the stage `dataset`"
        )


def _tables(shard: CandidateShard) -> Iterator[pa.Table]:
    """The row groups of a shard's candidates, with the columns of its other files."""
    with pq.ParquetFile(shard.candidates) as file:
        num_rows = file.metadata.num_rows
        sides = [
            *_side(shard.judge, JUDGE_COLUMNS, shard.candidates, num_rows),
            *_side(shard.difficulty, DIFFICULTY_COLUMNS, shard.candidates, num_rows),
            *_side(shard.duplicates, DUPLICATE_COLUMNS, shard.candidates, num_rows),
        ]
        first = 0
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, [column.name for column in CANDIDATE_COLUMNS])
            for name, values in sides:
                table = table.append_column(name, values.slice(first, table.num_rows))
            first += table.num_rows
            yield table


def _side(
    path: Path | None, columns: Sequence[Column], candidates: Path, num_rows: int
) -> Iterator[tuple[str, pa.ChunkedArray]]:
    """The columns of a file by name; nulls without the file."""
    if path is None:
        for column in columns:
            yield column.name, pa.chunked_array([pa.nulls(num_rows, column.kind.storage_type)])
        return
    with pq.ParquetFile(path) as file:
        table = file.read([column.name for column in columns])
    if table.num_rows != num_rows:
        raise InputError(
            f"{path}: {table.num_rows} rows, expected {num_rows}, one for each row of {candidates}. Refresh the stage "
            "`dataset`"
        )
    for column in columns:
        yield column.name, table[column.name].cast(column.kind.storage_type)


def _with_decisions(table: pa.Table, selection: Selection, rows: slice) -> pa.Table:
    verified = selection.verified[rows]
    splits = selection.splits[rows]
    pass_rates = selection.pass_rates[rows].astype(np.float64)
    _, first_rows, kinds = np.unique(selection.reasons[rows], return_index=True, return_inverse=True)
    reasons = pa.array([selection.reasons_of(rows.start + int(row)) for row in first_rows], pa.list_(pa.string()))
    columns = {
        "verified": pa.array(verified == 1, mask=verified < 0),
        "pass_rate": pa.array(pass_rates, mask=np.isnan(pass_rates)),
        "kept": pa.array(splits >= 0),
        "drop_reasons": reasons.take(pa.array(kinds)),
        "split": pa.array(SPLITS).take(pa.array(splits, mask=splits < 0)),
    }
    table = table.drop_columns("verified")
    for name, values in columns.items():
        table = table.append_column(name, values)
    return table
