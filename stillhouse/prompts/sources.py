"""A prompts source: an embedded file, one of the user's, or a Hugging Face dataset. `row` decides what a row means."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from stillhouse.config import PromptsConfig
from stillhouse.embedded import embedded_path
from stillhouse.errors import ConfigError, InputError
from stillhouse.prompts.files import COMPRESSED, ENDINGS, SourceRow, json_rows, read_file, require_column, suffix_of
from stillhouse.prompts.row import QUESTION_COLUMNS
from stillhouse.store import digest, file_sha256

EMBEDDED: Final = "embedded:"
HUGGING_FACE: Final = "hf:"
_PROMPT_COLUMNS: Final = ("prompt", "messages", *QUESTION_COLUMNS)
_ENDINGS: Final = (".txt", *ENDINGS)


def read_source(source: str) -> Iterator[SourceRow]:
    """Read every row of the source in order; blank lines are skipped.

    Raises ConfigError if the format is unknown, or needs a package that is not installed; InputError if the source is
    missing, unreadable, or has no column that holds a prompt.
    """
    if source.startswith(HUGGING_FACE):
        name, _, split = source.removeprefix(HUGGING_FACE).removesuffix("]").partition("[")
        return hugging_face_rows(name, split or "train", key="prompts.source", required=_PROMPT_COLUMNS)
    return read_file(_path_of(source), _ending_of(source), _PROMPT_COLUMNS)


def source_fingerprint(config: PromptsConfig) -> str:
    """Return the fingerprint of the source, or of all sources, for a cache key.

    It is a hash of the file's bytes, or the name of a Hugging Face dataset. A dataset that changed on the hub is
    therefore read again only when the stage is refreshed. Raises ConfigError or InputError as `read_source`.
    """
    if config.sources:
        return digest([_fingerprint_of(source) for source in config.sources.values()])
    return _fingerprint_of(config.source)


def _fingerprint_of(source: str) -> str:
    if source.startswith(HUGGING_FACE):
        return source
    _ending_of(source)
    return file_sha256(_path_of(source))


def _ending_of(source: str) -> str:
    """Return the ending that tells the format; raise ConfigError where it tells none."""
    ending = suffix_of(Path(source))
    if ending not in _ENDINGS and not Path(source).is_dir():
        raise ConfigError(
            f"prompts.source = {source!r}: the ending tells no format; expected {', '.join(_ENDINGS)} (also with "
            f"{' or '.join(COMPRESSED)} behind it) or {HUGGING_FACE}NAME; or give the file the ending of its format"
        )
    return ending


def _path_of(source: str) -> Path:
    if source.startswith(EMBEDDED):
        return embedded_path(source.removeprefix(EMBEDDED))
    path = Path(source).expanduser()
    if not path.exists():
        raise InputError(f"prompts file {path} is missing; expected the file that prompts.source names")
    if path.is_dir():
        raise InputError(
            f"prompts file {path} is a folder; expected a file. Name each of its files in prompts.sources. A "
            f"folder that `datasets` loads is {HUGGING_FACE}{path}; one that it saved to disk, or that another program "
            f"wrote, is read by `stillhouse convert {path} -o FOLDER`"
        )
    return path


def hugging_face_rows(name: str, split: str, *, key: str, required: Sequence[str]) -> Iterator[SourceRow]:
    """Yield rows of a Hugging Face dataset, `NAME` or `NAME:CONFIG`, or of a local folder, streamed.

    `key` is the config key that names it, for errors; of the columns `required` it must have one. Raises ConfigError if
    the package `datasets` is not installed; InputError if the dataset, its config or its split cannot be read, or it
    has none of the columns `required`.
    """
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ConfigError(f"{key} = 'hf:{name}' needs the package `datasets`: install stillhouse[hub]") from error
    repository, _, config_name = name.partition(":")
    if not repository:
        raise ConfigError(f"{key} = 'hf:{name}' names no dataset; expected hf:NAME or hf:NAME:CONFIG")
    place = f"hf:{name}[{split}]"
    try:
        dataset = load_dataset(repository, config_name or None, split=split, streaming=True)
        if dataset.column_names is not None:
            require_column(place, dataset.column_names, required)
        yield from json_rows(place, dataset)
    except (OSError, ValueError) as error:
        raise InputError(f"{place} cannot be read: {error}. Expected hf:NAME or hf:NAME:CONFIG and a split") from error
