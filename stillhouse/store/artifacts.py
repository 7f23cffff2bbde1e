"""Stage outputs under one root: `<root>/artifacts/<stage>/<key>/`, files first, manifest last.

A folder without a manifest does not exist as an artifact. A folder whose files no longer match its manifest is reported
by `problem`, so that a cached result whose bytes are gone or altered is recomputed and not trusted.
"""

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from stillhouse.errors import ConfigError
from stillhouse.store.atomic import sync_folder, temporary_name, unwritable, write_atomic
from stillhouse.store.fingerprint import canonical_json, digest, file_sha256
from stillhouse.types import Artifact, JsonObject

_MANIFEST = "manifest.json"


class ArtifactStore:
    """The folder that holds everything a run leaves behind.

    Args:
        root: a local folder; it need not exist.

    Raises:
        ConfigError: `root` is a URL.
    """

    def __init__(self, root: str | Path) -> None:
        if "://" in str(root):
            raise ConfigError(f"runtime.store = {str(root)!r}: expected a local folder")
        self.root = Path(root).absolute()

    def write(self, stage: str, key: str, fill: Callable[[Path], tuple[int, JsonObject]]) -> Artifact:
        """The artifact that `fill` makes; whole or absent.

        Args:
            stage: name of the stage, the folder's parent.
            key: what the artifact depends on, as a digest; a second write under the same key replaces the first.
            fill: writes files into the folder it is given and returns (num_rows, facts).

        Raises:
            StoreError: no space or no permission.
        """
        parent = self.root / "artifacts" / stage
        work = temporary_name(parent / key[:16])
        try:
            work.mkdir(parents=True)
        except OSError as error:
            raise unwritable(parent, error) from error
        try:
            num_rows, facts = fill(work)
            return self._seal(work, parent / key[:16], num_rows, facts)
        except OSError as error:
            raise unwritable(parent / key[:16], error) from error
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def _seal(self, work: Path, final: Path, num_rows: int, facts: JsonObject) -> Artifact:
        files = {}
        for path in sorted(work.rglob("*")):
            if path.is_file():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
                files[path.relative_to(work).as_posix()] = {
                    "size": path.stat().st_size,
                    "sha256": file_sha256(path),
                }
        fingerprint = digest({name: entry["sha256"] for name, entry in files.items()})
        artifact = Artifact(uri=str(final), fingerprint=fingerprint, num_rows=num_rows, facts=facts)
        manifest = {"artifact": artifact.model_dump(mode="json"), "files": files}
        write_atomic(work / _MANIFEST, canonical_json(manifest))
        if final.exists():
            # rename() does not replace a full folder; the manifest goes first so that no half of it is trusted.
            with suppress(FileNotFoundError):
                (final / _MANIFEST).unlink()
            shutil.rmtree(final)
        work.rename(final)
        sync_folder(final.parent)
        return artifact

    def problem(self, artifact: Artifact) -> str | None:
        """Why `artifact` cannot be used, or None when every byte of it is as it was written."""
        folder = Path(artifact.uri)
        try:
            manifest = json.loads((folder / _MANIFEST).read_bytes())
        except FileNotFoundError:
            return f"{folder} is gone"
        except (OSError, ValueError) as error:
            return f"{folder / _MANIFEST} cannot be read: {error}"
        if manifest["artifact"]["fingerprint"] != artifact.fingerprint:
            return f"{folder} holds another artifact than the one recorded"
        for name, entry in manifest["files"].items():
            path = folder / name
            if not path.is_file():
                return f"{path} is gone"
            if path.stat().st_size != entry["size"] or file_sha256(path) != entry["sha256"]:
                return f"{path} was altered"
        return None
