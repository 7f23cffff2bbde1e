"""Writes the files of a dataset from shards and a selection.

Rows stay Arrow from end to end and the JSON text of messages is never parsed, so that a change of thresholds costs a
copy. Time grows with the number of rows and memory does not; `benchmarks/dataset.py` measures both.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from stillhouse.dataset.read import rows_at, shard_tables
from stillhouse.dataset.recorded import copy_recorded
from stillhouse.dataset.schema import (
    COLUMNS,
    PREFERENCE_COLUMNS,
    RECORDED_FILE,
    SELECTION_COLUMNS,
    CandidateShard,
)
from stillhouse.dataset.select.select import Selection
from stillhouse.dataset.table import TableWriter, gathered
from stillhouse.dataset.totals import num_given
from stillhouse.errors import InputError
from stillhouse.types import JsonObject

SPLITS: Final = ("train", "validation")
REJECTED: Final = "rejected"
PREFERENCES: Final = "preferences"
_BATCH_ROWS: Final = 4096
_MEASURED: Final = [column.name for column in COLUMNS if column not in SELECTION_COLUMNS]
_PAIRED: Final = ["id", "prompt_id", "tag", "messages", "tools", "turns", "scores"]


def write_rows(shards: Sequence[CandidateShard], selection: Selection, folder: Path) -> dict[str, int]:
    """Fills `folder` with train.parquet, validation.parquet and rejected.parquet, and preferences.parquet for pairs.

    What was recorded of kept rows goes into a file beside them. Rows keep the order of the shards. Memory holds a row
    group of each file.

    Returns:
        Number of rows by file name without suffix.

    Raises:
        InputError: the files of a shard, or shards and selection, differ in their number of rows.
    """
    sizes = [pq.read_metadata(shard.candidates).num_rows for shard in shards]
    num_candidates = sum(sizes)
    if num_candidates != len(selection.splits):
        raise InputError(
            f"the shards hold {num_candidates} rows, but {len(selection.splits)} were decided about; expected one "
            "decision for each row. Refresh the stage `dataset`"
        )
    with ExitStack() as stack:
        writers = {
            name: stack.enter_context(TableWriter(folder / f"{name}.parquet", COLUMNS)) for name in (*SPLITS, REJECTED)
        }
        first = 0
        tables = chain.from_iterable(shard_tables(shard, _MEASURED, _BATCH_ROWS) for shard in shards)
        for table in gathered(tables, _BATCH_ROWS):
            rows = slice(first, first + table.num_rows)
            decided = _with_decisions(table, selection, rows)
            splits = np.where(selection.repeated[rows], np.int8(-2), selection.splits[rows])
            for split, name in enumerate((*SPLITS, REJECTED)):
                writers[name].write_table(decided.filter(pa.array(splits == (split if split < 2 else -1))))
            first = rows.stop
    recorded = zip((shard.recorded for shard in shards), sizes, strict=True)
    copy_recorded(recorded, (selection.splits >= 0) & ~selection.repeated, folder / RECORDED_FILE)
    num_rows = {name: writer.num_rows for name, writer in writers.items()}
    if len(selection.pairs):
        num_rows[PREFERENCES] = write_preferences(
            [shard.candidates for shard in shards], selection.pairs, folder / f"{PREFERENCES}.parquet"
        )
    return num_rows


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


def write_preferences(candidates: Sequence[Path], pairs: Sequence[tuple[int, int]], path: Path) -> int:
    """Writes a row for each pair in the form that preference trainers (TRL's `DPOTrainer`) read; the number of rows.

    `pairs` are row numbers over all shards, chosen before rejected; they are written in the order in which the shards
    complete them. A pair whose prompts or tools differ (another system prompt, for instance) is left out, since a
    trainer shows both answers after one prompt. Memory holds rows whose partner is still to come.
    """
    by_row = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    by_row = by_row[np.lexsort((by_row[:, 1], by_row[:, 0], by_row.max(axis=1)))]
    rows, uses = np.unique(by_row, return_counts=True)
    uses_left = dict(zip(rows.tolist(), uses.tolist(), strict=True))
    waiting: dict[int, JsonObject] = {}
    next_pair = 0
    with TableWriter(path, PREFERENCE_COLUMNS) as writer:
        for row, record in _paired_rows(candidates, rows):
            waiting[row] = record
            while next_pair < len(by_row) and by_row[next_pair].max() == row:
                chosen, rejected = by_row[next_pair].tolist()
                next_pair += 1
                preference = _preference(waiting[chosen], waiting[rejected])
                if preference is not None:
                    writer.write(preference)
                for used in (chosen, rejected):
                    uses_left[used] -= 1
                    if not uses_left[used]:
                        del waiting[used]
    return writer.num_rows


def _paired_rows(candidates: Sequence[Path], numbers: npt.NDArray[np.int64]) -> Iterator[tuple[int, JsonObject]]:
    """The rows with these sorted numbers over all shards, each with its number."""
    start = 0
    for path in candidates:
        end = start + pq.read_metadata(path).num_rows
        of_shard = numbers[np.searchsorted(numbers, start) : np.searchsorted(numbers, end)]
        yield from zip(of_shard.tolist(), rows_at(path, (of_shard - start).tolist(), _PAIRED), strict=True)
        start = end


def _preference(chosen: JsonObject, rejected: JsonObject) -> JsonObject | None:
    prompt, chosen_messages = _parts(chosen)
    rejected_prompt, rejected_messages = _parts(rejected)
    if prompt != rejected_prompt or chosen["tools"] != rejected["tools"]:
        return None
    return {
        "prompt": prompt,
        "chosen": chosen_messages,
        "rejected": rejected_messages,
        "tools": chosen["tools"],
        "prompt_id": chosen["prompt_id"],
        "tag": chosen["tag"],
        "chosen_id": chosen["id"],
        "rejected_id": rejected["id"],
        "chosen_scores": chosen["scores"],
        "rejected_scores": rejected["scores"],
    }


def _parts(record: JsonObject) -> tuple[list[str], list[str]]:
    """The messages of the prompt and the sampled ones, as JSON text."""
    texts: list[Any] = record["messages"]
    place = num_given([orjson.loads(text) for text in texts], record["turns"])
    return texts[:place], texts[place:]
