"""Which tools the teacher called, and how often."""

from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from stillhouse.dataset.read import iter_columns

_BATCH_ROWS: Final = 8192


def count_tool_calls(path: Path) -> Counter[str]:
    """Sampled tool calls in a dataset's file by the tool's name. Messages are read a few thousand rows at a time.

    Raises:
        InputError: the file is missing or no dataset of ours.
    """
    counts: Counter[str] = Counter()
    for batch in iter_columns(path, ("messages", "num_tool_calls"), batch_rows=_BATCH_ROWS):
        _add(counts, batch.column("messages"), batch.column("num_tool_calls").fill_null(0))
    return +counts


def _add(counts: Counter[str], messages: pa.Array, num_sampled: pa.Array) -> None:
    texts = messages.flatten()
    # Few messages call tools: the others are not parsed.
    calling = pc.match_substring(texts, '"tool_calls"')
    names = [_names(text) for text in texts.filter(calling).to_pylist()]
    counts.update(chain.from_iterable(names))
    rows = pc.list_parent_indices(messages).filter(calling).to_numpy()
    sizes = np.fromiter(map(len, names), dtype=np.int64, count=len(names))
    num_given = np.bincount(rows, weights=sizes, minlength=len(messages)) - num_sampled.to_numpy()
    for row in np.flatnonzero(num_given > 0):
        # Calls in the prompt's own messages come before those that were sampled.
        start, end = np.searchsorted(rows, (row, row + 1))
        counts.subtract([*chain.from_iterable(names[start:end])][: int(num_given[row])])


def _names(text: str) -> list[str]:
    return [call["function"]["name"] for call in orjson.loads(text).get("tool_calls") or ()]
