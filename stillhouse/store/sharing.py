"""Artifacts on object storage: how one machine gives them to others.

An artifact lies at `artifacts/<stage>/<key>-<fingerprint>/` there: a place that never holds anything else, so that what
one machine reads no other replaces. Files go first and the manifest last; without one nothing is there. Whoever fetches
an artifact compares every byte with the manifest, whose fingerprint the result of the stage names.
"""

import logging
from pathlib import Path
from typing import Final

from stillhouse.store.atomic import replaced_folder
from stillhouse.store.fingerprint import file_sha256
from stillhouse.store.manifest import MANIFEST, DamagedManifest, FileEntry, parse_manifest
from stillhouse.store.remote import RemoteFolder
from stillhouse.types import Artifact

_FINGERPRINT_DIGITS: Final = 16

logger = logging.getLogger(__name__)


class Altered(Exception):
    """The storage holds other bytes than were put there."""


def place(artifact: Artifact) -> str:
    """The name of an artifact's folder on object storage, the same from whatever machine."""
    stage, key = Path(artifact.uri).parts[-2:]
    return f"artifacts/{stage}/{key}-{artifact.fingerprint[:_FINGERPRINT_DIGITS]}"


def share(remote: RemoteFolder, artifact: Artifact) -> None:
    """Makes sure that the storage has an artifact, whose files are whole here; goes on with an upload cut short.

    Raises:
        StoreError: the storage cannot be reached or refuses.
    """
    folder, name = Path(artifact.uri), place(artifact)
    there = remote.sizes(name)
    if MANIFEST in there:
        return
    files = parse_manifest((folder / MANIFEST).read_bytes()).files
    # What has the name and the size is the file: the folder's name says what its files hold.
    missing = [file for file, entry in files.items() if there.get(file) != entry.size]
    logger.info("%s: sharing %d of %d files at %s/%s", folder, len(missing), len(files), remote.url, name)
    remote.upload({f"{name}/{file}": folder / file for file in missing})
    remote.upload({f"{name}/{MANIFEST}": folder / MANIFEST})


def fetch(remote: RemoteFolder, artifact: Artifact) -> str | None:
    """Brings an artifact to its folder here; why it cannot be had, or None when every byte is as it was written.

    Raises:
        StoreError: the storage cannot be reached or refuses, or the folder cannot be written.
    """
    name, folder = place(artifact), Path(artifact.uri)
    manifest = remote.read(f"{name}/{MANIFEST}")
    if manifest is None:
        return f"{remote.url}/{name} is gone"
    try:
        files = _files(manifest, artifact)
        there = remote.sizes(name)
        for file, entry in files.items():
            if there.get(file) != entry.size:
                raise Altered(f"{file} is gone or has another size")
        logger.info("%s: fetching %d files from %s/%s", folder, len(files), remote.url, name)
        with replaced_folder(folder) as work:
            _download(remote, name, files, work)
            (work / MANIFEST).write_bytes(manifest)
    except Altered as problem:
        return f"{remote.url}/{name}: {problem}"
    return None


def forget(remote: RemoteFolder, artifact: Artifact) -> None:
    """Removes an artifact that cannot be used, so that what is made in its place is uploaded whole.

    Raises:
        StoreError: the storage cannot be reached or refuses.
    """
    name = place(artifact)
    remote.remove([f"{name}/{MANIFEST}", *(f"{name}/{file}" for file in remote.sizes(name))])


def _files(manifest: bytes, artifact: Artifact) -> dict[str, FileEntry]:
    try:
        held = parse_manifest(manifest)
    except DamagedManifest as error:
        raise Altered(f"{MANIFEST} cannot be read: {error}") from error
    if held.artifact.fingerprint != artifact.fingerprint:
        raise Altered(f"{MANIFEST} is of another artifact than the one recorded")
    return held.files


def _download(remote: RemoteFolder, name: str, files: dict[str, FileEntry], work: Path) -> None:
    remote.download({f"{name}/{file}": work / file for file in files})
    for file, entry in files.items():
        if file_sha256(work / file) != entry.sha256:
            # Once more, since it may have been the way and not the storage.
            remote.download({f"{name}/{file}": work / file})
            if file_sha256(work / file) != entry.sha256:
                raise Altered(f"{file} was altered")
