"""Stage outputs under one root: `<root>/artifacts/<stage>/<key>/`, files first, manifest last.

A folder without a manifest does not exist as an artifact. A folder whose files no longer match its manifest is reported
by `problem`, so that a cached result whose bytes are gone or altered is recomputed and not trusted. Where the store is
on object storage the root is this machine's copy of it: artifacts are written there, shared, and fetched from others.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

from stillhouse.errors import StoreError
from stillhouse.store import sharing
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
from stillhouse.store.private import private_store, tighten, tighten_below
from stillhouse.store.remote import RemoteFolder
from stillhouse.types import Artifact, JsonObject


class ArtifactStore:
    """What runs leave behind: a folder, or object storage with a folder of this machine before it.

    Args:
        location: a local folder, which need not exist, or an fsspec URL such as `s3://BUCKET/PREFIX`.
        scratch: the folder of this machine where `location` is a URL.
    """

    def __init__(self, location: str | Path, scratch: str | Path = "runs") -> None:
        is_url = "://" in str(location)
        self.root = Path(scratch if is_url else location).absolute()
        """Folder of this machine."""
        self.remote = RemoteFolder(str(location)) if is_url else None
        """What machines share; None where that is the folder itself."""

    @property
    def url(self) -> str | None:
        """Where the storage is that machines share; None where that is the folder itself."""
        return None if self.remote is None else self.remote.url

    def check(self) -> None:
        """Makes sure that the store can be written.

        Raises:
            ConfigError: no installed package knows the URL's protocol.
            StoreError: no permission, no space, no such bucket, or no way to reach it.
        """
        self.make()
        try:
            with tempfile.TemporaryFile(dir=self.root) as file:
                file.write(b"stillhouse")
        except OSError as error:
            raise unwritable(self.root, error) from error
        if self.remote is not None:
            self.remote.write("stillhouse", b"A store of Stillhouse.\n")

    def make(self) -> None:
        """Makes the folder of this machine, for its owner alone; one that is there is taken from everybody else.

        Raises:
            StoreError: no permission, or a file lies in its place.
        """
        try:
            private_store(self.root)
        except OSError as error:
            raise unwritable(self.root, error) from error

    def write(self, stage: str, key: str, fill: Callable[[Path], tuple[int, JsonObject]]) -> Artifact:
        """The artifact that `fill` makes; whole or absent.

        Args:
            stage: name of the stage, the folder's parent.
            key: what the artifact depends on, as a digest; a second write under the same key replaces the first.
            fill: writes files into the folder it is given and returns (num_rows, facts).

        Raises:
            StoreError: no space or no permission.
        """
        final = self.root / "artifacts" / stage / key[:16]
        self.make()
        with replaced_folder(final) as work:
            num_rows, facts = fill(work)
            return _seal(work, final, num_rows, facts)

    def here(self, artifact: Artifact) -> Artifact:
        """The artifact as this machine knows it, with its folder under the root, wherever its writer had it."""
        return artifact.model_copy(update={"uri": str(self.root.joinpath(*Path(artifact.uri).parts[-3:]))})

    def obtain(self, artifact: Artifact) -> str | None:
        """As `problem`, but what is missing or altered here is first fetched from the storage that machines share.

        Args:
            artifact: as `here` gives it.

        Raises:
            StoreError: the storage cannot be reached, or the folder cannot be written.
        """
        problem = self.problem(artifact)
        return problem if problem is None or self.remote is None else sharing.fetch(self.remote, artifact)

    def share(self, artifact: Artifact) -> None:
        """Makes sure that other machines can have the artifact, whose bytes are whole here.

        Raises:
            StoreError: the storage cannot be reached or refuses.
        """
        if self.remote is not None:
            sharing.share(self.remote, artifact)

    def forget(self, artifact: Artifact) -> None:
        """Gives up the shared copy of an artifact that cannot be used and is made again.

        Raises:
            StoreError: the storage cannot be reached or refuses.
        """
        if self.remote is not None:
            sharing.forget(self.remote, artifact)

    def share_folder(self, folder: Path) -> None:
        """Copies a folder below the root to the storage that machines share, where there is one: a report, for one.

        Raises:
            StoreError: the storage cannot be reached or refuses.
        """
        if self.remote is not None:
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            self.remote.upload({path.relative_to(self.root).as_posix(): path for path in files})

    def problem(self, artifact: Artifact) -> str | None:
        """Why `artifact` cannot be used, or None when every byte of it is as it was written."""
        folder = Path(artifact.uri)
        if (problem := damage(folder)) is not None:
            return problem
        held = artifact_in(folder)
        if held is None or held.fingerprint != artifact.fingerprint:
            return f"{folder} holds another artifact than the one recorded"
        # Machines that share a storage may have made the same files in another time.
        if self.remote is None and _described(held) != _described(artifact):
            return f"{folder} and the record of its stage disagree about its figures"
        return None


def artifact_in(folder: Path) -> Artifact | None:
    """The artifact that a folder of the store holds, by its manifest; None for any other folder."""
    try:
        artifact = parse_manifest((folder / MANIFEST).read_bytes()).artifact
    except (OSError, DamagedManifest):
        return None
    # The manifest may have been written elsewhere.
    return artifact.model_copy(update={"uri": str(folder)})


def require_whole(folder: Path) -> None:
    """Makes sure that a folder is as its stage wrote it; folders that no stage wrote pass.

    Raises:
        StoreError: it is an artifact whose files are gone or altered.
    """
    if (folder / MANIFEST).exists() and (problem := damage(folder)) is not None:
        raise StoreError(
            f"{problem}: the artifact is damaged and is not used. Run the command again that made it: the stage is "
            "run anew, with every answer from the journal"
        )


def _described(artifact: Artifact) -> bytes:
    return canonical_json([artifact.num_rows, artifact.facts])


def _seal(work: Path, final: Path, num_rows: int, facts: JsonObject) -> Artifact:
    files = list_files(work)
    artifact = Artifact(uri=str(final), fingerprint=fingerprint_of(files), num_rows=num_rows, facts=facts)
    manifest = Manifest(artifact=artifact, files=files)
    (work / MANIFEST).write_bytes(canonical_json(manifest.model_dump(mode="json")))
    for folder in (final.parent.parent, final.parent):
        tighten(folder)
    tighten_below(work)
    return artifact
