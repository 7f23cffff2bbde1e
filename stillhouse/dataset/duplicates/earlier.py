"""Earlier datasets as parts of the corpus: their rows stand, whatever is compared with them."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from stillhouse.config import DuplicatesConfig
from stillhouse.dataset.duplicates.corpus import Part
from stillhouse.dataset.duplicates.signatures import SIGNATURE_SCHEMA, signatures_of
from stillhouse.dataset.duplicates.texts import read_texts
from stillhouse.errors import InputError

_KEPT_FILES: Final = ("train.parquet", "validation.parquet")
_BATCH_ROWS: Final = 1024


def earlier_parts(config: DuplicatesConfig, scratch: Path) -> list[Part]:
    """The files of `config.earlier`, in order, their signatures computed into the folder `scratch`.

    Of a dataset's folder these are the rows that were kept. A row without an id goes by its file and number.

    Raises:
        InputError: A dataset is missing, or a file of it is no Parquet file with a column `messages`.
    """
    parts: list[Part] = []
    for source in config.earlier:
        for path in _files(source):
            part = Part(scratch / f"earlier-{len(parts)}.parquet", path, source)
            _write_signatures(part, config)
            parts.append(part)
    return parts


def _files(source: str) -> list[Path]:
    path = Path(source).expanduser()
    files = [file for name in _KEPT_FILES if (file := path / name).exists()] if path.is_dir() else [path]
    if not files:
        raise InputError(
            f"dataset.duplicates.earlier names the folder {path}, which holds neither {' nor '.join(_KEPT_FILES)}; "
            "expected a folder that the stage `dataset` wrote, or a Parquet file"
        )
    for file in files:
        _check(file)
    return files


def _check(file: Path) -> None:
    expected = "expected a dataset's folder or a Parquet file with a column `messages`; mend or remove the entry"
    try:
        columns = pq.read_schema(file).names
    except FileNotFoundError as error:
        raise InputError(f"dataset.duplicates.earlier names {file}, which is missing; {expected}") from error
    except (OSError, pa.ArrowException) as error:
        raise InputError(
            f"dataset.duplicates.earlier names {file}, which is no Parquet: {error}; {expected}"
        ) from error
    if "messages" not in columns:
        raise InputError(
            f"dataset.duplicates.earlier names {file}, whose columns are {', '.join(columns) or 'none'}; {expected}"
        )


def _write_signatures(part: Part, config: DuplicatesConfig) -> None:
    ids, texts = _ids(part.texts), read_texts(part.texts)
    with pq.ParquetWriter(part.signatures, SIGNATURE_SCHEMA) as writer:
        while batch := list(islice(texts, _BATCH_ROWS)):
            writer.write_batch(signatures_of([(next(ids), None, None) for _ in batch], batch, config))


def _ids(path: Path) -> Iterator[str]:
    # Or row groups stay in memory once they are read.
    with pq.ParquetFile(path, pre_buffer=False) as file:
        if "id" not in file.schema_arrow.names:
            yield from (f"{path.name}, row {number}" for number in range(file.metadata.num_rows))
            return
        for batch in file.iter_batches(_BATCH_ROWS, columns=["id"]):
            yield from map(str, batch.column(0).to_pylist())
