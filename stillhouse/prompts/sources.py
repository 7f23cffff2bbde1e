"""The rows of a prompts source, one by one, each with the place it came from.

Reading never stops at a bad row: what cannot be read is a row with a `problem`. Only a source that cannot be opened, or
that holds no column to read prompts from, raises. What a row means is decided in `row`, not here.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from stillhouse.config import PromptsConfig
from stillhouse.embedded import embedded_path
from stillhouse.errors import ConfigError, InputError
from stillhouse.store import file_sha256
from stillhouse.types import JsonObject

EMBEDDED: Final = "embedded:"
HUGGING_FACE: Final = "hf:"
_UTF8_BOM: Final = b"\xef\xbb\xbf"
_UTF16_BOMS: Final = (b"\xff\xfe", b"\xfe\xff")
_FORMATS: Final = {".txt": "txt", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}


class SourceRow(NamedTuple):
    """One row as it was found: a JSON object, or what is wrong instead of one."""

    place: str
    """For instance `prompts.jsonl, line 12`."""
    value: JsonObject
    """Empty when there is a problem."""
    problem: str | None = None
    """What was seen and what was expected; None for a readable row."""


def read_source(config: PromptsConfig) -> Iterator[SourceRow]:
    """Every row of `config.source` in order; blank lines are no rows.

    Raises:
        ConfigError: the format cannot be told, or needs a package that is not installed.
        InputError: the source is missing, unreadable, or has neither a `prompt` nor a `messages` column.
    """
    kind = _format_of(config)
    if kind == "hf":
        from stillhouse.prompts.tables import read_hugging_face

        return read_hugging_face(config.source.removeprefix(HUGGING_FACE), config.hf_split)
    path = _path_of(config.source)
    if kind == "txt":
        return _read_txt(path)
    if kind == "jsonl":
        return _read_jsonl(path)
    from stillhouse.prompts.tables import read_csv, read_parquet

    return read_csv(path) if kind == "csv" else read_parquet(path)


def source_fingerprint(config: PromptsConfig) -> str:
    """What the source holds, for a cache key: a file's bytes. A Hugging Face dataset goes by its name, so that one
    that changed there is read again only when the stage is refreshed.

    Raises:
        ConfigError, InputError: as `read_source`.
    """
    if _format_of(config) == "hf":
        return config.source
    return file_sha256(_path_of(config.source))


def _format_of(config: PromptsConfig) -> str:
    if config.format != "auto":
        return config.format
    if config.source.startswith(HUGGING_FACE):
        return "hf"
    kind = _FORMATS.get(Path(config.source).suffix.lower())
    if kind is None:
        raise ConfigError(
            f"prompts.source = {config.source!r}: the ending tells no format; expected {', '.join(sorted(_FORMATS))} "
            f"or {HUGGING_FACE}NAME, or name the format in prompts.format"
        )
    return kind


def _path_of(source: str) -> Path:
    if source.startswith(EMBEDDED):
        return embedded_path(source.removeprefix(EMBEDDED))
    path = Path(source).expanduser()
    if not path.exists():
        raise InputError(f"prompts file {path} is missing; expected the file that prompts.source names")
    if path.is_dir():
        raise InputError(f"prompts file {path} is a folder; expected a txt, jsonl, csv or Parquet file")
    return path


def _read_txt(path: Path) -> Iterator[SourceRow]:
    for number, line in _lines(path):
        place = f"{path}, line {number}"
        try:
            yield SourceRow(place, {"prompt": line.decode().strip()})
        except UnicodeDecodeError as error:
            yield SourceRow(place, {}, f"expected UTF-8, saw byte {line[error.start]:#04x} at byte {error.start}")


def _read_jsonl(path: Path) -> Iterator[SourceRow]:
    for number, line in _lines(path):
        place = f"{path}, line {number}"
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            torn = "" if line.endswith(b"\n") else "; the file's last line has no end, so it may be cut off"
            yield SourceRow(place, {}, f"expected a JSON object, saw {excerpt(line)}: {error}{torn}")
            continue
        if isinstance(value, dict):
            yield SourceRow(place, value)
        else:
            yield SourceRow(place, {}, f"expected a JSON object, saw {excerpt(line)}")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank with their numbers from 1, without a byte order mark."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if number == 1:
                    if line.startswith(_UTF16_BOMS):
                        raise InputError(f"{path} is UTF-16; expected UTF-8, convert it with iconv")
                    line = line.removeprefix(_UTF8_BOM)
                if not line.isspace() and line:
                    yield number, line
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error


def excerpt(line: bytes) -> str:
    """The start of a line, fit for a message."""
    text = line.decode(errors="backslashreplace").strip()
    return repr(text if len(text) <= 60 else text[:57] + "...")
