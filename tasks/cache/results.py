"""Prefect's result records: files in the store's folder, copied to and from object storage where machines share one.

Prefect itself uses only the folder: it treats object storage that cannot be reached as empty, and would run a day's
training again.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from stillhouse.store import ArtifactStore, canonical_json
from stillhouse.store.atomic import write_atomic
from stillhouse.types import Artifact

_FOLDER: Final = "results"


def results_folder(store: ArtifactStore) -> Path:
    """Return the folder of the records on this machine, each under its cache key."""
    return store.root / _FOLDER


def download_record(store: ArtifactStore, key: str) -> bytes | None:
    """Replace this machine's record of a result by the one on object storage, and return that.

    None if there is none: a record that only this machine has stays, and is uploaded once it is used. Raises StoreError
    if the storage cannot be reached, or the folder cannot be written.
    """
    if store.remote is None:
        return None
    uploaded = store.remote.read(f"{_FOLDER}/{key}")
    path = results_folder(store) / key
    if uploaded is not None and uploaded != _portable(path, key):
        record = json.loads(uploaded)
        record["metadata"]["storage_key"] = str(path)
        write_atomic(path, canonical_json(record))
    return uploaded


def upload_result(result: Any, key: str, uploaded: bytes | None, store: ArtifactStore) -> None:
    """Upload a result for other machines, its artifacts first and its record last, unless its record is `uploaded`."""
    if store.remote is None:
        return
    record = _portable(results_folder(store) / key, key)
    if record is None or record == uploaded:
        return
    for artifact in artifacts_in(result):
        store.share(artifact)
    store.remote.write(f"{_FOLDER}/{key}", record)


def with_local_paths(result: Any, store: ArtifactStore) -> Any:
    """Return the result with the paths of its artifacts on this machine, whichever machine wrote them."""
    if isinstance(result, Artifact):
        return store.here(result)
    if isinstance(result, BaseModel):
        return result.model_copy(
            update={name: with_local_paths(getattr(result, name), store) for name in type(result).model_fields}
        )
    if isinstance(result, list | tuple):
        return type(result)(with_local_paths(item, store) for item in result)
    return result


def artifacts_in(result: Any) -> Iterator[Artifact]:
    """Yield every artifact a result holds, at any depth."""
    if isinstance(result, Artifact):
        yield result
    elif isinstance(result, BaseModel):
        for name in type(result).model_fields:
            yield from artifacts_in(getattr(result, name))
    elif isinstance(result, list | tuple):
        for item in result:
            yield from artifacts_in(item)


def _portable(path: Path, key: str) -> bytes | None:
    """Return a record without the path of this machine, which Prefect writes into it."""
    try:
        record = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    record["metadata"]["storage_key"] = key
    return canonical_json(record)
