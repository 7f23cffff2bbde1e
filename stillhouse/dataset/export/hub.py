"""Datasets to the Hugging Face Hub. Nothing leaves the machine unless `push_to_hub` is called."""

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stillhouse.dataset.export.hub_folder import write_hub_folder
from stillhouse.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_TOKEN_ENV: Final = "HF_TOKEN"


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
    import httpx
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    api = api or _api()
    try:
        with tempfile.TemporaryDirectory() as scratch:
            staged = Path(scratch) / "dataset"
            write_hub_folder(folder, staged, ("train", "validation"))
            address = api.create_repo(repository, private=private, repo_type="dataset", exist_ok=True)
            if private and not api.dataset_info(repository).private:
                raise StoreError(f"{address} is public, expected a private one; make it private, or name another")
            api.upload_folder(
                repo_id=repository,
                repo_type="dataset",
                folder_path=staged,
                commit_message="Upload dataset",
                delete_patterns="data/*",
            )
    except (HfHubHTTPError, HFValidationError, httpx.HTTPError) as error:
        raise StoreError(
            f"{repository} cannot be written on the Hugging Face Hub: {error}. Look at the name, at the rights of the "
            f"token in {_TOKEN_ENV}, and at the network"
        ) from error
    return str(address)


def _api() -> "HfApi":
    from huggingface_hub import HfApi

    token = os.environ.get(_TOKEN_ENV)
    if not token:
        raise ConfigError(f"the environment variable {_TOKEN_ENV} is not set; expected a token that may write datasets")
    return HfApi(token=token)
