"""Stage outputs under one root: `<root>/artifacts/<stage>/<key>/`, files first, manifest last.

A folder without a manifest does not exist as an artifact. A folder whose files no longer match its manifest is reported
by `problem`, so that a cached result whose bytes are gone or altered is recomputed and not trusted. Where the store is
on object storage the root is this machine's copy of it: artifacts are written there, shared, and fetched from others.
"""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

from stillhouse.store import sharing
from stillhouse.store.atomic import replaced_folder, unwritable
from stillhouse.store.fingerprint import canonical_json, digest, file_sha256
from stillhouse.store.remote import RemoteFolder
from stillhouse.store.sharing import MANIFEST
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
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.root) as file:
                file.write(b"stillhouse")
        except OSError as error:
            raise unwritable(self.root, error) from error
        if self.remote is not None:
            self.remote.write("stillhouse", b"A store of Stillhouse.\n")

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
        try:
            manifest = json.loads((folder / MANIFEST).read_bytes())
        except FileNotFoundError:
            return f"{folder} is gone"
        except (OSError, ValueError) as error:
            return f"{folder / MANIFEST} cannot be read: {error}"
        if manifest["artifact"]["fingerprint"] != artifact.fingerprint:
            return f"{folder} holds another artifact than the one recorded"
        for name, entry in manifest["files"].items():
            path = folder / name
            if not path.is_file():
                return f"{path} is gone"
            if path.stat().st_size != entry["size"] or file_sha256(path) != entry["sha256"]:
                return f"{path} was altered"
        return None


def artifact_in(folder: Path) -> Artifact | None:
    """The artifact that a folder of the store holds, by its manifest; None for any other folder."""
    try:
        artifact = Artifact.model_validate(json.loads((folder / MANIFEST).read_bytes())["artifact"])
    except (OSError, ValueError, KeyError):
        return None
    # The manifest may have been written elsewhere.
    return artifact.model_copy(update={"uri": str(folder)})


def _seal(work: Path, final: Path, num_rows: int, facts: JsonObject) -> Artifact:
    files = {
        path.relative_to(work).as_posix(): {"size": path.stat().st_size, "sha256": file_sha256(path)}
        for path in sorted(work.rglob("*"))
        if path.is_file()
    }
    fingerprint = digest({name: entry["sha256"] for name, entry in files.items()})
    artifact = Artifact(uri=str(final), fingerprint=fingerprint, num_rows=num_rows, facts=facts)
    manifest = {"artifact": artifact.model_dump(mode="json"), "files": files}
    (work / MANIFEST).write_bytes(canonical_json(manifest))
    return artifact
