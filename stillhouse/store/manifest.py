"""The manifest of an artifact: its files when it was written, and the check that they are unchanged."""

from pathlib import Path, PurePosixPath
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from stillhouse.errors import StoreError
from stillhouse.store.fingerprint import digest, file_sha256
from stillhouse.types import Artifact

MANIFEST: Final = "manifest.json"


class DamagedManifest(ValueError):
    """The bytes are no valid manifest; the message says why."""


class FileEntry(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)

    size: int
    """Bytes."""
    sha256: str


class Manifest(BaseModel):
    model_config = ConfigDict(frozen=True)

    artifact: Artifact
    files: dict[str, FileEntry]
    """By path relative to the artifact's folder, with slashes."""


def parse_manifest(data: bytes) -> Manifest:
    """Return the manifest in `data`.

    Raises DamagedManifest if it is not JSON, lacks a field, names a path outside its folder, or has another
    fingerprint.
    """
    try:
        manifest = Manifest.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise DamagedManifest(f"{place}: {first['msg']}" if place else first["msg"]) from error
    for name in manifest.files:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise DamagedManifest(f"it names {name!r}, which is no place inside the artifact")
    if fingerprint_of(manifest.files) != manifest.artifact.fingerprint:
        raise DamagedManifest("its fingerprint does not belong to the files it lists")
    return manifest


def fingerprint_of(files: dict[str, FileEntry]) -> str:
    """Return the fingerprint of an artifact with these files."""
    return digest({name: entry.sha256 for name, entry in files.items()})


def list_files(folder: Path) -> dict[str, FileEntry]:
    """Return the files below a folder as they are now."""
    return {
        path.relative_to(folder).as_posix(): FileEntry(size=path.stat().st_size, sha256=file_sha256(path))
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def damage(folder: Path) -> str | None:
    """Return why the artifact in `folder` is not whole, or None if every byte is intact; StoreError if none can tell.

    Any symbolic link is damage: nothing writes links into artifacts, and readers of the folder would follow them.
    """
    try:
        manifest = parse_manifest((folder / MANIFEST).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return f"{folder} is gone" if not folder.is_dir() else f"{folder / MANIFEST} is gone"
    except (IsADirectoryError, DamagedManifest) as error:
        return f"{folder / MANIFEST} cannot be read: {error}"
    except OSError as error:
        raise _unreadable(folder, error) from error
    try:
        for path in folder.rglob("*"):
            if path.is_symlink():
                return f"{path} is a link to {path.readlink()}, and an artifact has none"
        for name, entry in manifest.files.items():
            path = folder / name
            if not path.is_file():
                return f"{path} is gone"
            if path.stat().st_size != entry.size or file_sha256(path) != entry.sha256:
                return f"{path} was altered"
    except OSError as error:
        raise _unreadable(folder, error) from error
    return None


def _unreadable(folder: Path, error: OSError) -> StoreError:
    return StoreError(
        f"{folder} cannot be read: {error}. Nobody knows whether it is whole, so it is not made again: mend the "
        "permissions or the disk, or delete the folder; then run the same command again"
    )
