"""Which tools the teacher called, and how often."""

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
import pyarrow.compute as pc

from stillhouse.dataset.report.columns import iter_columns

_BATCH_ROWS: Final = 2048


def count_tool_calls(path: Path) -> Counter[str]:
    """Sampled tool calls in a dataset's file by the tool's name. Messages are read a few thousand rows at a time.

    Raises:
        InputError: the file is missing or no dataset of ours.
    """
    counts: Counter[str] = Counter()
    for batch in iter_columns(path, ("messages", "num_tool_calls"), batch_rows=_BATCH_ROWS):
        limits = batch.column("num_tool_calls").fill_null(0).to_numpy()
        messages = batch.column("messages")
        # Few messages call tools: the others are not parsed.
        calling = pc.match_substring(messages.flatten(), '"tool_calls"')
        texts = messages.flatten().filter(calling).to_pylist()
        rows = pc.list_parent_indices(messages).filter(calling).to_numpy()
        for start, end in _runs(rows):
            names = [name for text in texts[start:end] for name in _names(orjson.loads(text))]
            limit = int(limits[rows[start]])
            # Calls in the prompt's own messages come before those that were sampled.
            counts.update(names[max(0, len(names) - limit) :])
    return counts


def _runs(rows: "np.ndarray[Any, np.dtype[np.int64]]") -> list[tuple[int, int]]:
    """Start and end of each stretch of equal numbers."""
    edges = [0, *(np.flatnonzero(np.diff(rows)) + 1).tolist(), len(rows)]
    return [(start, end) for start, end in pairwise(edges) if end > start]


def _names(message: dict[str, Any]) -> list[str]:
    return [str(call["function"]["name"]) for call in message.get("tool_calls") or ()]
