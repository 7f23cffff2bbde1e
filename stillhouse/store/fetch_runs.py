"""Runs of other machines, brought to this one from the storage they share, to be read here."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from stillhouse.errors import InputError
from stillhouse.store.artifacts import ArtifactStore
from stillhouse.store.atomic import write_atomic
from stillhouse.store.manifest import MANIFEST, DamagedManifest, parse_manifest
from stillhouse.store.remote import RemoteFolder
from stillhouse.store.runs import RUN_FILE, find_run


def bring_run(location: str, name: str, wants: Callable[[str], bool]) -> Path:
    """The folder of a store; for a URL the folder `runs` here, with what a run left in the storage.

    Args:
        location: of the store: a folder, or a URL as `ArtifactStore` takes it.
        name: of the run, as `find_run` takes it; nothing is brought for what is a file or folder here.
        wants: whether the artifacts of a stage are needed.

    Raises:
        InputError: there is no such run, or what it made is gone from the storage.
        StoreError: the storage cannot be reached, or the folder cannot be written.
    """
    store = ArtifactStore(location)
    if store.remote is None:
        return Path(location)
    if Path(name).exists():
        return store.root
    for path in store.remote.sizes("reports"):
        # Small, and of runs that have ended: what is here is what is there.
        if path.endswith(f"/{RUN_FILE}") and not (store.root / "reports" / path).exists():
            write_atomic(store.root / "reports" / path, store.remote.read(f"reports/{path}") or b"")
    for stage, uris in find_run(store.root, name).artifacts.items():
        for uri in uris if wants(stage) else ():
            if not store.root.joinpath(*Path(uri).parts[-3:]).is_dir():
                _bring(store, store.remote, Path(uri))
    return store.root


def _bring(store: ArtifactStore, remote: RemoteFolder, uri: Path) -> None:
    stage, key = uri.parts[-2:]
    # A key has one artifact, unless a stage that was run again gave other bytes; then the run may have had either.
    places = [path for path in remote.sizes(f"artifacts/{stage}") if path.startswith(f"{key}-")]
    for path in sorted(path for path in places if path.endswith(f"/{MANIFEST}")):
        manifest = remote.read(f"artifacts/{stage}/{path}") or b""
        with suppress(DamagedManifest):
            if store.obtain(store.here(parse_manifest(manifest).artifact)) is None:
                return
    raise InputError(f"{remote.url}/artifacts/{stage}/{key}-*: gone or damaged; run the same command again to make it")
