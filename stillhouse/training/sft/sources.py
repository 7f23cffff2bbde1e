"""Reads rows to train on from datasets of this project, files of other programs, and Hugging Face datasets.

Free of torch, so that a flow can fingerprint sources. `row_forms` parses the rows.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from stillhouse.config.training import SftConfig, SftSource
from stillhouse.dataset.read import SplitName, read_file
from stillhouse.errors import ConfigError, InputError
from stillhouse.interop.sources import present, read_rows
from stillhouse.prompts.files import ENDINGS, SourceRow, suffix_of
from stillhouse.prompts.sources import HUGGING_FACE, hugging_face_rows
from stillhouse.store.fingerprint import file_sha256

_DATASET_COLUMNS: Final = ("id", "messages", "tools", "prompt_id", "tag", "turns")


class SplitRow(NamedTuple):
    split: SplitName
    row: SourceRow
    is_own: bool = False
    """True if the row is of a dataset of this project, which has checked it."""


def all_sources(dataset_folder: Path | None, config: SftConfig) -> list[SftSource]:
    """Return the run's own dataset, unless its weight is zero, and the config's sources."""
    if config.dataset_weight == 0.0:
        return list(config.sources)
    assert dataset_folder is not None, "a `TrainJob` has one where the weight is above 0"
    return [SftSource(path=str(dataset_folder), weight=config.dataset_weight), *config.sources]


def source_fingerprint(source: SftSource) -> str:
    """Return a digest of the source's files; a Hugging Face dataset goes by its name and split only."""
    if source.path.startswith(HUGGING_FACE):
        return f"{source.path}[{source.split}]"
    path = _path_of(source)
    if not path.is_dir():
        return file_sha256(path)
    return "+".join(file_sha256(file) for file in _dataset_files(path).values())


def read_source_rows(source: SftSource) -> Iterator[SplitRow]:
    """Yield every row of a source in order; rows of a dataset's validation file come last."""
    if source.path.startswith(HUGGING_FACE):
        name = source.path.removeprefix(HUGGING_FACE)
        rows = present(hugging_face_rows(name, source.split, key="sft.sources", required=()))
    elif (path := _path_of(source)).is_dir():
        for split, file in _dataset_files(path).items():
            for number, row in enumerate(read_file(file, _DATASET_COLUMNS)):
                yield SplitRow(split, SourceRow(f"{file}, row {number}", row), is_own=True)
        return
    else:
        rows = read_rows(path)
    for source_row in rows:
        yield SplitRow("train", source_row)


def _path_of(source: SftSource) -> Path:
    path = Path(source.path).expanduser()
    if not path.exists():
        raise InputError(
            f"sft.sources: {source.path} does not exist; expected a file of rows, a dataset's folder, or "
            f"{HUGGING_FACE}NAME for a Hugging Face dataset"
        )
    if path.is_file() and suffix_of(path) not in ENDINGS:
        raise ConfigError(
            f"sft.sources: {source.path} ends in {path.suffix or 'nothing'!r}, which tells no format; expected "
            f"{', '.join(ENDINGS)}, a dataset's folder or {HUGGING_FACE}NAME"
        )
    return path


def _dataset_files(folder: Path) -> dict[SplitName, Path]:
    names: tuple[SplitName, ...] = ("train", "validation")
    files = {name: folder / f"{name}.parquet" for name in names if (folder / f"{name}.parquet").is_file()}
    if "train" not in files:
        raise InputError(
            f"sft.sources: folder {folder} holds no train.parquet; expected a dataset of the dataset stage. Name the "
            f"file itself, or {HUGGING_FACE}{folder} for a folder that the package `datasets` reads"
        )
    return files
