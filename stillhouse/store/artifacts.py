"""Stage outputs under one root: `<root>/artifacts/<stage>/<key>/`, files first, manifest last.

A folder without a manifest does not exist as an artifact. A folder whose files no longer match its manifest is reported
by `problem`, so that a cached result whose bytes are gone or altered is recomputed and not trusted. Where the store is
on object storage the root is this machine's copy of it: artifacts are written there, shared, and fetched from others.
"""

import logging
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from stillhouse.errors import StoreError
from stillhouse.store.atomic import replaced_folder, unwritable
from stillhouse.store.fingerprint import canonical_json
from stillhouse.store.manifest import (
    MANIFEST,
    DamagedManifest,
    Manifest,
    damage,
    fingerprint_of,
    list_files,
    parse_manifest,
)
from stillhouse.store.private import StoreMode, private_store, set_access, set_access_below
from stillhouse.store.records import write_jsonl
from stillhouse.store.remote import RemoteFolder, artifact_prefix, fetch_artifact
from stillhouse.types import Artifact, JsonObject

logger = logging.getLogger(__name__)


class ArtifactStore:
    """Outputs of runs in a local folder, or on object storage with the local folder `scratch` as its cache.

    Storage is an fsspec URL such as `s3://BUCKET/PREFIX`. Every method that writes or reaches it raises StoreError: no
    space, no permission, no way to reach it.
    """

    def __init__(self, location: str | Path, scratch: str | Path = "runs") -> None:
        is_url = "://" in str(location)
        self.root = Path(scratch if is_url else location).absolute()
        """Local folder."""
        self.remote = RemoteFolder(str(location)) if is_url else None
        """Storage shared between machines; None if that is the folder itself."""

    @property
    def url(self) -> str | None:
        """Return the URL of the shared storage; None if the store is a local folder."""
        return None if self.remote is None else self.remote.url

    def check(self) -> None:
        """Make sure that the store can be written.

        Raises ConfigError if no installed package knows the URL's protocol.
        """
        self.make()
        try:
            with tempfile.TemporaryFile(dir=self.root) as file:
                file.write(b"stillhouse")
        except OSError as error:
            raise unwritable(self.root, error) from error
        if self.remote is not None:
            self.remote.write("stillhouse", b"A store of Stillhouse.\n")

    def make(self, mode: StoreMode | None = None) -> None:
        """Create the local folder for its owner or a group, or give an existing one to them; None keeps a group's."""
        try:
            private_store(self.root, mode)
        except OSError as error:
            raise unwritable(self.root, error) from error

    def write(self, stage: str, key: str, fill: Callable[[Path], tuple[int, JsonObject]]) -> Artifact:
        """Write the artifact that `fill` makes of the folder it is given, atomically; `fill` returns (num_rows, facts).

        `key` is a digest of what it depends on; a second write under the same key replaces the first.
        """
        final = self.root / "artifacts" / stage / key[:16]
        self.make()
        with replaced_folder(final) as work:
            num_rows, facts = fill(work)
            files = list_files(work)
            artifact = Artifact(uri=str(final), fingerprint=fingerprint_of(files), num_rows=num_rows, facts=facts)
            manifest = Manifest(artifact=artifact, files=files)
            (work / MANIFEST).write_bytes(canonical_json(manifest.model_dump(mode="json")))
            for folder in (final.parent.parent, final.parent):
                set_access(folder)
            set_access_below(work)
            return artifact

    def write_rows(
        self, stage: str, key: str, file: str, rows: Iterable[Any], facts: Mapping[str, Any] = MappingProxyType({})
    ) -> Artifact:
        """Write an artifact of one file of JSON lines, as `write`."""
        return self.write(stage, key, lambda folder: (write_jsonl(folder / file, rows), dict(facts)))

    def here(self, artifact: Artifact) -> Artifact:
        """Return the artifact with its folder under the local root, wherever it was written."""
        return artifact.model_copy(update={"uri": str(self.root.joinpath(*Path(artifact.uri).parts[-3:]))})

    def obtain(self, artifact: Artifact) -> str | None:
        """Return `problem` of what `here` returned, after fetching a missing or altered artifact from the storage."""
        problem = self.problem(artifact)
        return problem if problem is None or self.remote is None else fetch_artifact(self.remote, artifact)

    def share(self, artifact: Artifact) -> None:
        """Upload an intact artifact to the shared storage unless it is there; continue an interrupted upload."""
        if self.remote is None:
            return
        folder, name = Path(artifact.uri), artifact_prefix(artifact)
        sizes = self.remote.sizes(name)
        if MANIFEST in sizes:
            return
        files = parse_manifest((folder / MANIFEST).read_bytes()).files
        # Name and size suffice: the folder's name contains the fingerprint.
        missing = [file for file, entry in files.items() if sizes.get(file) != entry.size]
        logger.info("%s: sharing %d of %d files at %s/%s", folder, len(missing), len(files), self.remote.url, name)
        self.remote.upload({f"{name}/{file}": folder / file for file in missing})
        self.remote.upload({f"{name}/{MANIFEST}": folder / MANIFEST})

    def forget(self, artifact: Artifact) -> None:
        """Delete the shared copy of an unusable artifact, so that its replacement is uploaded completely."""
        if self.remote is not None:
            name = artifact_prefix(artifact)
            self.remote.remove([f"{name}/{MANIFEST}", *(f"{name}/{file}" for file in self.remote.sizes(name))])

    def share_folder(self, folder: Path) -> None:
        """Copy a folder below the root, such as a report, to the shared storage, if there is one."""
        if self.remote is not None:
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            self.remote.upload({path.relative_to(self.root).as_posix(): path for path in files})

    def problem(self, artifact: Artifact) -> str | None:
        """Return why `artifact` cannot be used, or None if every byte is intact."""
        folder = Path(artifact.uri)
        if (problem := damage(folder)) is not None:
            return problem
        stored = artifact_in(folder)
        if stored is None or stored.fingerprint != artifact.fingerprint:
            return f"{folder} holds another artifact than the one recorded"
        # Machines with a shared storage may record other timings for the same files.
        here, recorded = (canonical_json([each.num_rows, each.facts]) for each in (stored, artifact))
        if self.remote is None and here != recorded:
            return f"{folder} and the record of its stage disagree about its figures"
        return None


def artifact_in(folder: Path) -> Artifact | None:
    """Return the artifact in a folder by its manifest; None if there is none."""
    try:
        artifact = parse_manifest((folder / MANIFEST).read_bytes()).artifact
    except (OSError, DamagedManifest):
        return None
    # The manifest may have been written elsewhere.
    return artifact.model_copy(update={"uri": str(folder)})


def require_whole(folder: Path) -> None:
    """Raise StoreError for an artifact whose files are gone or altered; folders without a manifest pass."""
    if (folder / MANIFEST).exists() and (problem := damage(folder)) is not None:
        raise StoreError(
            f"{problem}: the artifact is damaged and is not used. Run the command again that made it: the stage is "
            "run anew, with every answer from the journal",
            code="artifact",
        )
