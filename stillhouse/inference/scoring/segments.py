"""Files of the ledger: Arrow streams that grow by one record batch for each answer.

A batch is handed to the system before its scores are used, so that a process that is killed loses nothing of it. What
a killed process wrote in part ends its file, which no other process continues.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from xxhash import xxh3_64_digest

from stillhouse.inference.scoring.scores import SequenceScores, TopLogprobs
from stillhouse.store.private import private_file, private_folder

SEGMENT: Final = "arrows"
"""Ending of a segment's name, which begins with the time it was begun at."""
SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary(32), nullable=False),
        pa.field("top_k", pa.int32(), nullable=False),
        pa.field("logprobs", pa.list_(pa.float32()), nullable=False),
        pa.field("top_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("top_logprobs", pa.list_(pa.float16()), nullable=False),
        pa.field("log_tail", pa.list_(pa.float16()), nullable=False),
        pa.field("digest", pa.binary(8), nullable=False),
    ]
)
"""A row is a sequence. `top_k` most probable tokens were asked for, 0 for none; `top_ids` and `top_logprobs` hold those
of one scored token after the other."""
_LISTS: Final = ("logprobs", "top_ids", "top_logprobs", "log_tail")
_KEYS: Final = pa.ipc.IpcReadOptions(included_fields=[SCHEMA.get_field_index(name) for name in ("key", "top_k")])
# Ids have empty high bits: a quarter less.
_COMPRESSED: Final = pa.ipc.IpcWriteOptions(compression="zstd")

logger = logging.getLogger(__name__)


class Place(NamedTuple):
    """Where the scores of a sequence are."""

    path: Path
    offset: int
    """Of the record batch in the file, in bytes."""
    row: int
    top_k: int


class SegmentWriter:
    """Appends to one new file; raises OSError where it cannot."""

    def __init__(self, path: Path) -> None:
        private_folder(path.parent)
        private_file(path)
        self.path = path
        self._file = pa.OSFile(str(path), "wb")
        self._stream = pa.ipc.new_stream(self._file, SCHEMA, options=_COMPRESSED)

    def append(self, scores: Mapping[bytes, SequenceScores], top_k: int) -> dict[bytes, Place]:
        """Write the scores of sequences as one batch, and return where each is."""
        offset = self._file.tell()
        self._stream.write_batch(_batch(scores, top_k))
        return {key: Place(self.path, offset, row, top_k) for row, key in enumerate(scores)}

    def close(self) -> None:
        self._stream.close()
        self._file.close()


def find_keys(path: Path) -> Iterator[tuple[bytes, Place]]:
    """Yield the key and place of each sequence in a file, up to what a killed process wrote in part."""
    with pa.memory_map(str(path)) as source:
        offset = 0
        try:
            stream = pa.ipc.open_stream(source, options=_KEYS)
            while True:
                offset = source.tell()
                batch = stream.read_next_batch()
                pairs = zip(*(column.to_pylist() for column in batch.columns), strict=True)
                for row, (key, top_k) in enumerate(pairs):
                    yield key, Place(path, offset, row, top_k)
        except StopIteration:
            return
        except (OSError, pa.ArrowException) as error:
            logger.info("%s ends at byte %d, in what was written when a process was killed: %s", path, offset, error)


def read_scores(path: Path, offset: int, rows: Sequence[int]) -> list[SequenceScores | None]:
    """Return the scores in rows of a batch, None where bytes have changed; raise OSError if it cannot be opened."""
    with pa.memory_map(str(path)) as source:
        try:
            source.seek(offset)
            message = pa.ipc.read_message(source)
            if message.type == "schema":  # written with the first batch
                message = pa.ipc.read_message(source)
            batch = pa.ipc.read_record_batch(message, SCHEMA)
            batch.validate(full=True)
            return [_scores(batch, row) for row in rows]
        except (OSError, pa.ArrowException):
            return [None] * len(rows)


def _batch(scores: Mapping[bytes, SequenceScores], top_k: int) -> pa.RecordBatch:
    rows = [_columns(sequence) for sequence in scores.values()]
    lists = [
        pa.ListArray.from_arrays(
            pa.array(np.cumsum([0, *map(len, arrays)]), pa.int32()),
            pa.array(np.concatenate(arrays), field.type.value_type),
        )
        for field, arrays in zip((SCHEMA.field(name) for name in _LISTS), zip(*rows, strict=True), strict=True)
    ]
    keys = pa.array(scores.keys(), pa.binary(32))
    digests = pa.array(map(_digest, scores.keys(), rows), pa.binary(8))
    return pa.RecordBatch.from_arrays([keys, pa.array([top_k] * len(rows), pa.int32()), *lists, digests], schema=SCHEMA)


def _columns(scores: SequenceScores) -> tuple[np.ndarray, ...]:
    logprobs_N = np.array(scores.logprobs, dtype=np.float32)
    if scores.top is None:
        return logprobs_N, np.empty(0, np.int32), np.empty(0, np.float16), np.empty(0, np.float16)
    return logprobs_N, scores.top.ids_NK.ravel(), scores.top.logprobs_NK.ravel(), scores.top.log_tail_N


def _scores(batch: pa.RecordBatch, row: int) -> SequenceScores | None:
    arrays = tuple(batch.column(name)[row].values.to_numpy(zero_copy_only=False) for name in _LISTS)
    key, digest = (batch.column(name)[row].as_py() for name in ("key", "digest"))
    if _digest(key, arrays) != digest:
        return None
    logprobs_N, ids, logprobs, log_tail_N = arrays
    top = None
    if len(log_tail_N):
        shape = (len(log_tail_N), -1)
        top = TopLogprobs(ids.reshape(shape), logprobs.reshape(shape), log_tail_N)
    return SequenceScores(logprobs_N.tolist(), top)


def _digest(key: bytes, arrays: Sequence[np.ndarray]) -> bytes:
    """Return XXH3 of a key and the lists stored under it."""
    return xxh3_64_digest(b"".join((key, *(array.tobytes() for array in arrays))))
