"""Evaluation sets: the texts of their rows, whatever the columns are called."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from stillhouse.config import ContaminationConfig, PromptsConfig
from stillhouse.errors import ConfigError, InputError
from stillhouse.prompts.sources import read_csv, read_source
from stillhouse.store.fingerprint import digest, file_sha256
from stillhouse.types import JsonObject

_ENDINGS: Final = (".txt", ".jsonl", ".ndjson", ".csv", ".parquet")
_BATCH_ROWS: Final = 1024


def read_set(name: str, file: str) -> Iterator[list[str]]:
    """All texts of each row of an evaluation set, at any depth and in order, JSON in text included.

    Raises:
        ConfigError: the file's suffix is unknown.
        InputError: the file is missing or one of its rows cannot be read: a set that is read in part would miss
            contamination by the rest.
    """
    path = _path(name, file)
    try:
        for row in _rows(path):
            yield list(_texts(row))
    except InputError as error:
        raise InputError(f"{_key(name)}: {error}") from error
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{_key(name)}: {path} cannot be read as {path.suffix[1:]}: {error}") from error


def sets_fingerprint(config: ContaminationConfig) -> str:
    """Hash of the bytes of all evaluation sets under their names, for a cache key.

    Raises:
        ConfigError, InputError: as `read_set` of a file that cannot be found.
    """
    return digest({name: file_sha256(_path(name, file)) for name, file in config.sets.items()})


def _key(name: str) -> str:
    return f"dataset.contamination.sets.{name}"


def _path(name: str, file: str) -> Path:
    path = Path(file).expanduser()
    if not path.is_file():
        seen = "is a folder" if path.is_dir() else "is missing"
        raise InputError(f"{_key(name)}: {path} {seen}; expected a file that ends in {', '.join(_ENDINGS)}")
    if path.suffix.lower() not in _ENDINGS:
        raise ConfigError(f"{_key(name)} = {file!r}: the ending tells no format; expected {', '.join(_ENDINGS)}")
    return path


def _rows(path: Path) -> Iterator[JsonObject]:
    ending = path.suffix.lower()
    if ending == ".parquet":
        # `pre_buffer` would keep row groups in memory once they are read.
        with pq.ParquetFile(path, pre_buffer=False) as file:
            for batch in file.iter_batches(_BATCH_ROWS):
                yield from batch.to_pylist()
        return
    for row in read_csv(path, required=()) if ending == ".csv" else read_source(PromptsConfig(source=str(path))):
        if row.problem is not None:
            raise InputError(f"{row.place}: {row.problem}; mend or remove the line")
        yield row.value


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return (text for item in value for text in _texts(item))
    if not isinstance(value, str):
        return ()
    parsed = _parsed(value)
    return (value,) if parsed is None else _texts(parsed)


def _parsed(text: str) -> list[Any] | JsonObject | None:
    if not text.lstrip().startswith(("[", "{")):
        return None
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, list | dict) else None
