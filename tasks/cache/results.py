"""Prefect's records of results, in the store's folder and, where there is one, on the storage that machines share.

Prefect reads and writes them in the folder. What is shared is moved around it: Prefect takes a storage that cannot be
reached for one that is empty, and would run a day's training again.
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
    """Where Prefect keeps records on this machine, each under its cache key."""
    return store.root / _FOLDER


def fetch_record(store: ArtifactStore, key: str) -> bytes | None:
    """Brings the shared record of a result to this machine, in the place of its own; the record as it is shared.

    None where none is shared: one that only this machine has stays, and is shared once it is used.

    Raises:
        StoreError: the storage cannot be reached, or the folder cannot be written.
    """
    if store.remote is None:
        return None
    shared = store.remote.read(f"{_FOLDER}/{key}")
    path = results_folder(store) / key
    if shared is not None and shared != _as_shared(path, key):
        record = json.loads(shared)
        record["metadata"]["storage_key"] = str(path)
        write_atomic(path, canonical_json(record))
    return shared


def share(result: Any, key: str, shared: bytes | None, store: ArtifactStore) -> None:
    """Lets other machines have a result: its artifacts first, its record last.

    Args:
        result: a stage's, as `here` gives it, whose artifacts are whole.
        key: of the cache.
        shared: the record that is shared so far and can be used; None for none.
        store: of the run.

    Raises:
        StoreError: the storage cannot be reached or refuses.
    """
    if store.remote is None:
        return
    own = _as_shared(results_folder(store) / key, key)
    if own is None or own == shared:
        return
    for artifact in artifacts_in(result):
        store.share(artifact)
    store.remote.write(f"{_FOLDER}/{key}", own)


def here(result: Any, store: ArtifactStore) -> Any:
    """The result with its artifacts where this machine has them, whichever wrote them."""
    if isinstance(result, Artifact):
        return store.here(result)
    if isinstance(result, BaseModel):
        return result.model_copy(
            update={name: here(getattr(result, name), store) for name in type(result).model_fields}
        )
    if isinstance(result, list | tuple):
        return type(result)(here(item, store) for item in result)
    return result


def artifacts_in(result: Any) -> Iterator[Artifact]:
    """Every artifact a result holds, at any depth."""
    if isinstance(result, Artifact):
        yield result
    elif isinstance(result, BaseModel):
        for name in type(result).model_fields:
            yield from artifacts_in(getattr(result, name))
    elif isinstance(result, list | tuple):
        for item in result:
            yield from artifacts_in(item)


def _as_shared(path: Path, key: str) -> bytes | None:
    """A record as it reads on any machine: Prefect notes in it the path that it was written to."""
    try:
        record = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    record["metadata"]["storage_key"] = key
    return canonical_json(record)
