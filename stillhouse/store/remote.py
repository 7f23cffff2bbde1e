"""Object storage by its fsspec URL, such as `s3://BUCKET/PREFIX`, and the artifacts that machines share there.

Access is decided by the variables that the storage's own tools know (AWS_ACCESS_KEY_ID and the like), never by a
config. An artifact lies at `artifacts/<stage>/<key>-<fingerprint>/`, a prefix that never holds anything else, so that
no machine replaces what another one reads. The manifest is uploaded last; without it there is no artifact. A download
is compared byte by byte with the manifest, whose fingerprint the stage's result names.
"""

import errno
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from stillhouse.errors import ConfigError, StoreError
from stillhouse.store.atomic import replaced_folder
from stillhouse.store.fingerprint import file_sha256
from stillhouse.store.manifest import MANIFEST, DamagedManifest, FileEntry, parse_manifest
from stillhouse.types import Artifact

_LOCAL_ERRORS: Final = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
_EXTRAS: Final = {"s3": "s3"}
# Each holds up to 100 MiB of its file in memory.
_MAX_PARALLEL: Final = 8


class RemoteFolder:
    """Objects below one URL by their relative names, written atomically; connects at first use.

    Every method raises ConfigError if no installed package knows the URL's protocol, and StoreError if the storage
    cannot be reached, or refuses. Its client retries transient failures.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def read(self, name: str) -> bytes | None:
        """Return the bytes of an object; None where there is none."""
        with self._client("read", name) as files:
            try:
                data: bytes = files.cat_file(self._path(name))
            except FileNotFoundError:
                return None
            return data

    def write(self, name: str, data: bytes) -> None:
        with self._client("written", name) as files:
            files.pipe_file(self._path(name), data)

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the size in bytes of every object below `folder`, by its name relative to that."""
        with self._client("listed", folder) as files:
            start = self._path(folder)
            entries = files.find(start, detail=True)
            return {path.removeprefix(f"{start}/"): entry["size"] for path, entry in entries.items()}

    def upload(self, paths: Mapping[str, Path]) -> None:
        """Write local files, several at once, each under its name."""
        with self._client("written", next(iter(paths), "")) as files:
            files.put(list(map(str, paths.values())), [self._path(name) for name in paths], batch_size=_MAX_PARALLEL)

    def download(self, paths: Mapping[str, Path]) -> None:
        """Read objects, all of which are there, into local files, several at once."""
        for path in paths.values():
            path.parent.mkdir(parents=True, exist_ok=True)
        with self._client("read", next(iter(paths), "")) as files:
            files.get([self._path(name) for name in paths], list(map(str, paths.values())), batch_size=_MAX_PARALLEL)

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects, those that are there."""
        with self._client("removed", "") as files:
            for name in names:
                with suppress(FileNotFoundError):
                    files.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self.url.partition('://')[2]}/{name}".rstrip("/")

    @contextmanager
    def _client(self, verb: str, name: str) -> Iterator[Any]:
        """Yield the storage's client and translate its errors, which differ between packages."""
        try:
            yield filesystem(self.url.partition("://")[0])
        except ConfigError:
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno in _LOCAL_ERRORS:
                raise
            raise StoreError(
                f"runtime.store: {self.url}/{name} cannot be {verb}: {type(error).__name__}: {error}. Look at the "
                "address, the network and the storage's variables in the environment (AWS_ACCESS_KEY_ID, "
                "AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL); then run the same command again: what finished is kept"
            ) from error


@cache
def filesystem(protocol: str) -> Any:
    """Return the process's client for URLs that start with `protocol`; raise ConfigError if none knows it."""
    import fsspec

    try:
        # A cached listing would hide what other machines write.
        return fsspec.filesystem(protocol, use_listings_cache=False)
    except (ImportError, ValueError) as error:
        extra = _EXTRAS.get(protocol)
        remedy = f"pip install -e '.[{extra}]'" if extra else f"install the package that fsspec needs for {protocol}://"
        raise ConfigError(
            f"runtime.store starts with {protocol}://, which nothing that is installed can open: {error}. {remedy}, or "
            "name a local folder"
        ) from error


_FINGERPRINT_DIGITS: Final = 16

logger = logging.getLogger(__name__)


class _Altered(Exception):
    """The storage holds other bytes than were uploaded."""


def artifact_prefix(artifact: Artifact) -> str:
    """Name of an artifact's folder on object storage, the same on every machine."""
    stage, key = Path(artifact.uri).parts[-2:]
    return f"artifacts/{stage}/{key}-{artifact.fingerprint[:_FINGERPRINT_DIGITS]}"


def fetch_artifact(remote: RemoteFolder, artifact: Artifact) -> str | None:
    """Download an artifact to its local folder; return why it is unavailable, or None if every byte is intact."""
    name, folder = artifact_prefix(artifact), Path(artifact.uri)
    manifest = remote.read(f"{name}/{MANIFEST}")
    if manifest is None:
        return f"{remote.url}/{name} is gone"
    try:
        parsed = parse_manifest(manifest)
        if parsed.artifact.fingerprint != artifact.fingerprint:
            raise _Altered(f"{MANIFEST} is of another artifact than the one recorded")
        files, sizes = parsed.files, remote.sizes(name)
        for file, entry in files.items():
            if sizes.get(file) != entry.size:
                raise _Altered(f"{file} is gone or has another size")
        logger.info("%s: fetching %d files from %s/%s", folder, len(files), remote.url, name)
        with replaced_folder(folder) as work:
            _download(remote, name, files, work)
            (work / MANIFEST).write_bytes(manifest)
    except DamagedManifest as error:
        return f"{remote.url}/{name}: {MANIFEST} cannot be read: {error}"
    except _Altered as problem:
        return f"{remote.url}/{name}: {problem}"
    return None


def _download(remote: RemoteFolder, name: str, files: dict[str, FileEntry], work: Path) -> None:
    remote.download({f"{name}/{file}": work / file for file in files})
    for file, entry in files.items():
        if file_sha256(work / file) != entry.sha256:
            # Once more: the transfer may be at fault, not the storage.
            remote.download({f"{name}/{file}": work / file})
            if file_sha256(work / file) != entry.sha256:
                raise _Altered(f"{file} was altered")
