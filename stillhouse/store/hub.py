"""Uploads to the Hugging Face Hub."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from stillhouse.errors import ConfigError, StoreError
from stillhouse.keys import unset

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_TOKEN_ENV: Final = "HF_TOKEN"


def hub_client() -> "HfApi":
    """Return a client with the token in the environment variable HF_TOKEN; raise ConfigError without one."""
    from huggingface_hub import HfApi

    token = os.environ.get(_TOKEN_ENV)
    if not token:
        raise ConfigError(
            f"{unset(_TOKEN_ENV)}: a token of the Hugging Face Hub with the right to write, made at "
            "https://huggingface.co/settings/tokens"
        )
    return HfApi(token=token)


def push_folder(
    folder: Path,
    repository: str,
    kind: Literal["dataset", "model"],
    *,
    private: bool,
    replaces: Sequence[str],
    api: "HfApi",
) -> str:
    """Upload a folder as one commit and return the address of the repository, created if missing.

    Files of earlier uploads that match `replaces` and are gone locally are deleted in the same commit. Raises
    StoreError if the hub refuses or is unreachable, or the repository is public but should be private.
    """
    import httpx
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        address = api.create_repo(repository, private=private, repo_type=kind, exist_ok=True)
        if private and not api.repo_info(repository, repo_type=kind).private:
            raise StoreError(f"{address} is public, expected a private one; make it private, or name another")
        api.upload_folder(
            repo_id=repository,
            repo_type=kind,
            folder_path=folder,
            commit_message=f"Upload {kind}",
            delete_patterns=list(replaces),
        )
    except (HfHubHTTPError, HFValidationError, httpx.HTTPError) as error:
        raise StoreError(
            f"{repository} cannot be written on the Hugging Face Hub: {error}. Look at the name, at the rights of the "
            f"token in {_TOKEN_ENV}, and at the network"
        ) from error
    return str(address)
