"""Stage outputs under one root: `<root>/artifacts/<stage>/<key>/`, files first, manifest last.

A folder without a manifest does not exist as an artifact. A folder whose files no longer match its manifest is reported
by `problem`, so that a cached result whose bytes are gone or altered is recomputed and not trusted.
"""

import json
from collections.abc import Callable
from pathlib import Path

from stillhouse.errors import ConfigError
from stillhouse.store.atomic import replaced_folder
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
        final = self.root / "artifacts" / stage / key[:16]
        with replaced_folder(final) as work:
            num_rows, facts = fill(work)
            return _seal(work, final, num_rows, facts)

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


def artifact_in(folder: Path) -> Artifact | None:
    """The artifact that a folder of the store holds, by its manifest; None for any other folder."""
    try:
        return Artifact.model_validate(json.loads((folder / _MANIFEST).read_bytes())["artifact"])
    except (OSError, ValueError, KeyError):
        return None


def _seal(work: Path, final: Path, num_rows: int, facts: JsonObject) -> Artifact:
    files = {
        path.relative_to(work).as_posix(): {"size": path.stat().st_size, "sha256": file_sha256(path)}
        for path in sorted(work.rglob("*"))
        if path.is_file()
    }
    fingerprint = digest({name: entry["sha256"] for name, entry in files.items()})
    artifact = Artifact(uri=str(final), fingerprint=fingerprint, num_rows=num_rows, facts=facts)
    manifest = {"artifact": artifact.model_dump(mode="json"), "files": files}
    (work / _MANIFEST).write_bytes(canonical_json(manifest))
    return artifact
