"""Pairs of a right and a wrong trajectory in the form that preference trainers (TRL's `DPOTrainer`) read."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from stillhouse.dataset.schema import PREFERENCE_COLUMNS
from stillhouse.dataset.table import TableWriter
from stillhouse.dataset.totals import num_given
from stillhouse.types import JsonObject

_COLUMNS: Final = ["id", "prompt_id", "tag", "messages", "tools", "turns", "scores"]


def write_preferences(candidates: Sequence[Path], pairs: Sequence[tuple[int, int]], path: Path) -> int:
    """Writes a row for each pair, in the order in which the shards complete them; the number of rows.

    A pair whose prompts or tools differ (another system prompt, for instance) is left out, since a trainer shows both
    answers after one prompt. Memory holds rows whose partner is still to come.

    `pairs` are row numbers over all shards, chosen before rejected.
    """
    by_row = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    by_row = by_row[np.lexsort((by_row[:, 1], by_row[:, 0], by_row.max(axis=1)))]
    rows, uses = np.unique(by_row, return_counts=True)
    uses_left = dict(zip(rows.tolist(), uses.tolist(), strict=True))
    waiting: dict[int, JsonObject] = {}
    next_pair = 0
    with TableWriter(path, PREFERENCE_COLUMNS) as writer:
        for row, record in _records(candidates, rows):
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


def _records(candidates: Sequence[Path], numbers: npt.NDArray[np.int64]) -> Iterator[tuple[int, JsonObject]]:
    """The rows with these sorted numbers, each with its number."""
    first = 0
    for path in candidates:
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                end = first + file.metadata.row_group(group).num_rows
                here = numbers[np.searchsorted(numbers, first) : np.searchsorted(numbers, end)]
                if len(here):
                    table = file.read_row_group(group, _COLUMNS).take(pa.array(here - first))
                    yield from zip(here.tolist(), table.to_pylist(), strict=True)
                first = end


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
