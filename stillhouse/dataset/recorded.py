"""Tokens that a teacher found most probable where it sampled (`rollouts.record_top_k`), in a file of its own.

Shards and datasets have it where something was recorded. It serves the loss `kl` of SFT, and nothing else reads it.
"""

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from stillhouse.dataset.schema import RECORDED_FILE
from stillhouse.errors import InputError
from stillhouse.inference.top_tokens import TopTokens
from stillhouse.types import Trajectory

_SCHEMA: Final = pa.schema(
    [
        pa.field("row", pa.int64(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("model", pa.string(), nullable=False),
        pa.field("messages", pa.list_(pa.int32()), nullable=False),
        pa.field("turns", pa.list_(pa.binary()), nullable=False),
    ]
)
"""The number of the row among the shard's or among all, its columns `id` and `model`, and for each turn that was
recorded the index of its message and what `TopTokens.pack` makes of it, without base64."""
_BATCH_ROWS: Final = 64


class RecordedRow(NamedTuple):
    id: str
    model: str
    turns: Mapping[int, TopTokens]
    """By index of the assistant's message."""


class RecordedWriter:
    """Writes the recorded turns of trajectories; the file is there once one has some, and complete after the block."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._num_rows = 0
        self._writer: pq.ParquetWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def write(self, trajectories: Sequence[Trajectory]) -> None:
        """Append the next trajectories; raise InputError if what was recorded of one is damaged."""
        rows = [row for number, one in enumerate(trajectories, self._num_rows) if (row := _row(number, one))]
        self._num_rows += len(trajectories)
        if rows:
            self.write_batch(pa.RecordBatch.from_pylist(rows, _SCHEMA))

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Append rows of the form of the file."""
        if self._writer is None:
            # The turns are compressed already.
            self._writer = pq.ParquetWriter(self._path, _SCHEMA, compression="none", use_dictionary=False)
        self._writer.write_batch(batch)


def _row(number: int, trajectory: Trajectory) -> dict[str, object] | None:
    places = [index for index, message in enumerate(trajectory.messages) if message["role"] == "assistant"]
    # The last of them were sampled, one in each turn.
    of_turns = zip(reversed(places), reversed(trajectory.turns), strict=False)
    recorded = {place: turn.top_logprobs for place, turn in of_turns if turn.top_logprobs is not None}
    if not recorded:
        return None
    try:
        packed = [base64.b64decode(text, validate=True) for text in recorded.values()]
    except ValueError as error:
        raise InputError(f"trajectory {trajectory.rollout_key}: its top_logprobs are damaged: {error}") from error
    named = {"id": trajectory.rollout_key, "model": trajectory.model}
    return {"row": number, **named, "messages": list(recorded), "turns": packed}


def copy_recorded(files: Iterable[tuple[Path | None, int]], is_kept: npt.NDArray[np.bool_], path: Path) -> None:
    """Write to `path` what the shards recorded of the rows that are kept, by `is_kept` over all shards, if anything.

    `files` has the file of each shard, None where nothing was recorded, and its number of rows.
    """
    first = 0
    with RecordedWriter(path) as writer:
        for file, num_rows in files:
            for batch in _batches(file) if file is not None else ():
                rows = batch.column("row").to_numpy() + first
                shifted = batch.set_column(0, _SCHEMA.field("row"), pa.array(rows))
                if (kept := shifted.filter(pa.array(is_kept[rows]))).num_rows:
                    writer.write_batch(kept)
            first += num_rows


def read_recorded(folder: Path) -> Iterator[RecordedRow]:
    """Yield what was recorded of a dataset's rows, in their order; raise InputError for a damaged file."""
    path = folder / RECORDED_FILE
    for batch in _batches(path) if path.is_file() else ():
        for row in batch.to_pylist():
            try:
                turns = map(TopTokens.of_bytes, row["turns"])
                yield RecordedRow(row["id"], row["model"], dict(zip(row["messages"], turns, strict=True)))
            except ValueError as error:
                raise InputError(f"{path}: row {row['id']}: {error}. Build the dataset again") from error


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    try:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            yield from file.iter_batches(_BATCH_ROWS)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path} cannot be read: {error}; expected a file of the stage `dataset`") from error
