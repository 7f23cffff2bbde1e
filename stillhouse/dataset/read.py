"""Rows of a dataset's Parquet files, with their JSON columns as JSON objects again."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from stillhouse.dataset.schema import JSON_COLUMNS, JSON_LIST_COLUMNS
from stillhouse.errors import InputError
from stillhouse.types import JsonObject

SplitName = Literal["train", "validation", "rejected"]
_BATCH_ROWS: Final = 1024


def read_rows(folder: Path, split: SplitName) -> Iterator[JsonObject]:
    """The rows of one file of a dataset, in order; messages, tools, metadata and error as they were stored.

    Raises:
        InputError: the file is missing or no dataset of ours.
    """
    return read_file(folder / f"{split}.parquet")


def read_file(path: Path, columns: Sequence[str] | None = None) -> Iterator[JsonObject]:
    """As `read_rows`, for a file that may lie anywhere; `columns` are those wanted, None for all.

    Raises:
        InputError: the file is missing or no dataset of ours.
    """
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH_ROWS, columns=columns):
                for row in batch.to_pylist():
                    yield {name: _decoded(name, value) for name, value in row.items()}
    except (OSError, ValueError, pa.ArrowException) as error:
        raise InputError(f"dataset file {path} cannot be read: {error}; expected a folder of build_dataset") from error


def _decoded(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name in JSON_LIST_COLUMNS:
        return [orjson.loads(item) for item in value]
    return orjson.loads(value) if name in JSON_COLUMNS else value
