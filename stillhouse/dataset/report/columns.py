"""Columns of a dataset's files, a batch at a time."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stillhouse.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BATCH_ROWS: Final = 1 << 16
_HASH_KEY: Final = "stillhouse/rows."
"""16 bytes, as SipHash takes them."""


def iter_columns(path: Path, names: Sequence[str], *, batch_rows: int = _BATCH_ROWS) -> Iterator[pa.RecordBatch]:
    """The columns `names` of a dataset's file, in batches; JSON columns as text.

    Raises:
        InputError: the file is missing, is damaged, or lacks a column.
    """
    try:
        with pq.ParquetFile(path) as file:
            if missing := set(names) - set(file.schema_arrow.names):
                raise InputError(f"dataset file {path} lacks {', '.join(sorted(missing))}: build the dataset again")
            for batch in file.iter_batches(batch_rows, columns=list(names)):
                yield pa.RecordBatch.from_arrays([_plain(column) for column in batch.columns], batch.schema.names)
    except (OSError, pa.ArrowException) as error:
        raise InputError(
            f"dataset file {path} cannot be read: {error}; expected a file of the dataset stage"
        ) from error


def _plain(column: pa.Array) -> pa.Array:
    """JSON as text: compute functions do not take the extension type."""
    if isinstance(column.type, pa.JsonType):
        return column.storage
    if pa.types.is_list(column.type) and isinstance(column.type.value_type, pa.JsonType):
        return column.cast(pa.list_(pa.string()))
    return column


def numbers(column: pa.Array) -> "NDArray[np.float64]":
    """The values of a column of numbers or flags that are not null."""
    return column.drop_null().cast(pa.float64()).to_numpy(zero_copy_only=False)


def hashes(column: pa.Array) -> "NDArray[np.uint64]":
    """SipHash of each text, the same in any process."""
    from pandas.util import hash_array

    texts = column.fill_null("").to_numpy(zero_copy_only=False)
    return np.asarray(hash_array(texts.astype(object), hash_key=_HASH_KEY, categorize=False), dtype=np.uint64)
