"""Tags, params and dataset inputs of a run in MLflow's form."""

import getpass
import hashlib
import json
import os
import re
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

FLOW_RUN_TAG = "prefect.flow_run_id"
HOST_TAG = "stillhouse.host"
PARENT_TAG = "mlflow.parentRunId"


@cache
def origin_tags() -> dict[str, str]:
    """Return the tags of this process: user, commit, version and host."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = str(os.getuid())  # a container's user may have no name
    tags = {
        "mlflow.user": user,
        "mlflow.source.type": "LOCAL",
        HOST_TAG: socket.gethostname(),
    }
    with suppress(PackageNotFoundError):  # a checkout that is not installed; its commit tells
        tags["stillhouse.version"] = version("stillhouse")
    if (commit := _commit()) is not None:
        sha, _, dirty = commit.partition("-")
        tags |= {"mlflow.source.git.commit": sha} | ({"git.dirty": "true"} if dirty else {})
    return tags


def _commit() -> str | None:
    """Return `<sha>` or `<sha>-dirty` of the repository that tracks this file; None for an installed copy."""
    here = Path(__file__).resolve()
    git = ["git", "-C", str(here.parent)]
    try:
        # A virtual environment may lie inside somebody else's repository.
        subprocess.run([*git, "ls-files", "--error-unmatch", here.name], check=True, capture_output=True, timeout=10)
        describe = [*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        described = subprocess.run(describe, check=True, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip() or None


MAX_PARAM_CHARS = 6000
"""Longest value of an MLflow param."""
MAX_TAG_CHARS = 8000
"""Longest value of an MLflow tag."""


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return the leaves of a nested mapping by dotted key, `{"sft": {"epochs": 2}}` -> `{"sft.epochs": "2"}`.

    Lists are leaves, written as JSON; None, True and False are written as in YAML.
    """
    flat: dict[str, str] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, prefix=f"{name}."))
        else:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
            flat[tracking_key(name)] = shorten(text, MAX_PARAM_CHARS)
    return flat


_MAX_KEY_CHARS = 250
_KEY_DIGEST_CHARS = 8


def tracking_key(name: str) -> str:
    """Return the name of a metric or param as MLflow takes it: unchanged, or changed and told apart by a digest.

    MLflow refuses more than 250 characters, characters other than letters, digits and `_-./: `, and paths that are not
    in their normal form, such as `a//b` or `../a` (mlflow/utils/validation.py).
    """
    parts = re.sub(r"[^/\w.\- :]", "_", name).split("/")
    key = "/".join("_" if part in ("", ".", "..") else part for part in parts)
    if key == name and len(name) <= _MAX_KEY_CHARS:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_KEY_DIGEST_CHARS]
    return f"{key[: _MAX_KEY_CHARS - _KEY_DIGEST_CHARS - 1]}-{digest}"


def shorten(text: str, max_chars: int) -> str:
    """Return `text`, cut to `max_chars` with a note of its full length when it is longer."""
    if len(text) <= max_chars:
        return text
    note = f" ... [cut: {len(text)} characters in all]"
    return text[: max_chars - len(note)] + note


_MAX_DIGEST_CHARS = 36


def dataset_input(name: str, uri: str, digest: str, context: str, num_rows: int | None) -> Any:
    """Return an `mlflow.entities.DatasetInput`; the source's type is the scheme of `uri`, or `local`."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):", uri)
    dataset = Dataset(
        name=name,
        digest=digest[:_MAX_DIGEST_CHARS],
        source_type=scheme.group(1) if scheme else "local",
        source=json.dumps({"uri": uri}),
        profile=None if num_rows is None else json.dumps({"num_rows": num_rows}),
    )
    return DatasetInput(dataset, tags=[InputTag("mlflow.data.context", context)])
