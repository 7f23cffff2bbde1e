"""Writes the files of a dataset from shards and a selection.

Rows stay Arrow from end to end and the JSON text of messages is never parsed, so that a change of thresholds costs a
copy. Time grows with the number of rows and memory does not; `benchmarks/dataset.py` measures both.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stillhouse.dataset.read import shard_tables
from stillhouse.dataset.recorded import copy_recorded
from stillhouse.dataset.schema import COLUMNS, DATASET_FILES, RECORDED_FILE, SELECTION_COLUMNS, CandidateShard
from stillhouse.dataset.select.select import Selection
from stillhouse.dataset.table import TableWriter, gathered
from stillhouse.errors import InputError

_SPLITS: Final = ("train", "validation")
_BATCH_ROWS: Final = 4096
_MEASURED: Final = [column.name for column in COLUMNS if column not in SELECTION_COLUMNS]


def write_rows(shards: Sequence[CandidateShard], selection: Selection, folder: Path) -> None:
    """Fill `folder` with train.parquet, validation.parquet and rejected.parquet.

    What was recorded of kept rows goes into a file beside them. Rows keep the order of the shards. Memory holds a row
    group of each file. Raises InputError if the files of a shard, or shards and selection, differ in their rows.
    """
    sizes = [pq.read_metadata(shard.candidates).num_rows for shard in shards]
    num_candidates = sum(sizes)
    if num_candidates != len(selection.splits):
        raise InputError(
            f"the shards hold {num_candidates} rows, but {len(selection.splits)} were decided about; expected one "
            "decision for each row. Refresh the stage `dataset`"
        )
    with ExitStack() as stack:
        writers = [stack.enter_context(TableWriter(folder / name, COLUMNS)) for name in DATASET_FILES]
        first = 0
        tables = chain.from_iterable(shard_tables(shard, _MEASURED, _BATCH_ROWS) for shard in shards)
        for table in gathered(tables, _BATCH_ROWS):
            rows = slice(first, first + table.num_rows)
            decided = _with_decisions(table, selection, rows)
            splits = np.where(selection.repeated[rows], np.int8(-2), selection.splits[rows])
            for split, writer in zip((0, 1, -1), writers, strict=True):
                writer.write_table(decided.filter(pa.array(splits == split)))
            first = rows.stop
    recorded = zip((shard.recorded for shard in shards), sizes, strict=True)
    copy_recorded(recorded, (selection.splits >= 0) & ~selection.repeated, folder / RECORDED_FILE)


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
        "split": pa.array(_SPLITS).take(pa.array(splits, mask=splits < 0)),
    }
    table = table.drop_columns("verified")
    for name, values in columns.items():
        table = table.append_column(name, values)
    return table
