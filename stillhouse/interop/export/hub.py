"""A dataset on the Hugging Face Hub, and the folder for `load_dataset`: a card and `data/*.parquet`."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq

from stillhouse.dataset.read import SplitName
from stillhouse.errors import InputError
from stillhouse.store.atomic import replaced_folder
from stillhouse.store.hub import hub_client, push_folder

if TYPE_CHECKING:
    from huggingface_hub import HfApi


_CARD: Final = "README.md"


def write_hub_folder(folder: Path, output: Path, splits: Sequence[SplitName]) -> int:
    """Copy the files of a dataset to the new folder `output`, atomically; return the number of rows of `splits`.

    Empty splits are left out, since `load_dataset` refuses them. Raises InputError if `folder` is no dataset, or has no
    rows.
    """
    num_rows = {split: file.metadata.num_rows for split, file in split_files(folder, splits)}
    filled = [split for split in splits if num_rows[split]]
    if not filled:
        raise InputError(f"{folder}: there are no rows in {', '.join(splits)}; expected some to export")
    card = _card(folder / _CARD, filled)
    with replaced_folder(output) as work:
        (work / "data").mkdir()
        for name in filled:
            shutil.copyfile(folder / f"{name}.parquet", work / _path(name))
        (work / _CARD).write_text(card, encoding="utf-8")
    return sum(num_rows.values())


def _path(name: str) -> str:
    return f"data/{name}-00000-of-00001.parquet"


def split_files(folder: Path, splits: Sequence[SplitName]) -> Iterator[tuple[SplitName, pq.ParquetFile]]:
    """Yield the open file of each split of a dataset; raise InputError for one that cannot be read."""
    for split in splits:
        path = folder / f"{split}.parquet"
        try:
            file = pq.ParquetFile(path)
        except (OSError, ValueError) as error:
            raise InputError(f"dataset file {path} cannot be read: {error}; expected a dataset's folder") from error
        with file:
            yield split, file


def _card(path: Path, splits: Sequence[SplitName]) -> str:
    """Return the dataset's card with the new paths of its files."""
    from huggingface_hub import RepoCard

    try:
        card = RepoCard(path.read_text(encoding="utf-8"), ignore_metadata_errors=False)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: no dataset card: {error}; expected the README.md of a dataset") from error
    files = [{"split": split, "path": _path(split)} for split in splits]
    card.data.configs = [{"config_name": "default", "data_files": files}]  # type: ignore[attr-defined]
    return str(card)


def push_to_hub(folder: Path, repository: str, *, private: bool, api: "HfApi | None" = None) -> str:
    """Upload a dataset's kept rows and card as one commit to `OWNER/NAME`; return the URL of the repository.

    The repository is created if missing; only its owner may read a `private` one. Outdated data files of an earlier
    upload are removed. `api` None takes a client with the token in HF_TOKEN. Raises as `hub_client`, `write_hub_folder`
    and `push_folder`.
    """
    api = api or hub_client()
    with tempfile.TemporaryDirectory() as scratch:
        staged = Path(scratch) / "dataset"
        write_hub_folder(folder, staged, ("train", "validation"))
        return push_folder(staged, repository, "dataset", private=private, replaces=["data/*"], api=api)
