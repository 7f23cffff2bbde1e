"""Datasets to the Hugging Face Hub."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from stillhouse.interop.export.hub_folder import write_hub_folder
from stillhouse.store.hub import hub_client, push_folder

if TYPE_CHECKING:
    from huggingface_hub import HfApi


def push_to_hub(folder: Path, repository: str, *, private: bool, api: "HfApi | None" = None) -> str:
    """Uploads a dataset's kept rows, pairs and card as one commit; the address of the repository.

    Data files of an earlier upload that are no longer there are removed in the same commit.

    Args:
        folder: What the dataset stage wrote.
        repository: `OWNER/NAME`; made if it is not there.
        private: Whether only its owner may read it.
        api: A client of the hub; None makes one with the token in the environment variable HF_TOKEN.

    Raises:
        ConfigError: There is no token.
        InputError: `folder` is no dataset.
        StoreError: The hub refuses, cannot be reached, or holds a public repository where a private one is wanted.
    """
    api = api or hub_client()
    with tempfile.TemporaryDirectory() as scratch:
        staged = Path(scratch) / "dataset"
        write_hub_folder(folder, staged, ("train", "validation"))
        return push_folder(staged, repository, "dataset", private=private, replaces=["data/*"], api=api)
