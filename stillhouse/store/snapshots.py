"""Snapshots of unfinished work on object storage; only the newest one of a folder is kept.

`underway/<folder>/manifest.json` lists the files; each is an object named by the SHA-256 of its bytes. The manifest is
replaced after all files are uploaded, so that a reader always finds a complete snapshot.
"""

import hashlib
import json
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from stillhouse.store.atomic import replaced_atomically, replaced_folder
from stillhouse.store.fingerprint import canonical_json, file_sha256
from stillhouse.store.remote import RemoteFolder
from stillhouse.types import JsonObject

_MANIFEST: Final = "manifest.json"

logger = logging.getLogger(__name__)


class _Damaged(Exception):
    """A stored file is missing or altered."""


class Snapshots:
    """The snapshot of a local folder, called `name` on the storage, of the files whose relative path `is_kept` selects.

    Those that `is_fixed` selects never change and may have any size; others may grow while they are read, and are held
    in memory. Methods raise StoreError if the storage cannot be reached or refuses.
    """

    def __init__(
        self,
        remote: RemoteFolder,
        folder: Path,
        name: str,
        *,
        is_kept: Callable[[Path], bool],
        is_fixed: Callable[[Path], bool],
    ) -> None:
        self._remote, self._folder, self._prefix = remote, folder, f"underway/{name}"
        self._is_kept, self._is_fixed = is_kept, is_fixed
        self._digests: dict[Path, str] = {}

    def take(self) -> None:
        """Replace the snapshot by the current state of the folder.

        Raises FileNotFoundError if a file disappeared meanwhile; the previous snapshot stays.
        """
        sizes = self._remote.sizes(self._prefix)
        paths = [path.relative_to(self._folder) for path in sorted(self._folder.rglob("*")) if path.is_file()]
        kept = [path for path in paths if self._is_kept(path)]
        files: JsonObject = {}
        # Fixed files first: growing ones may be ahead of them, as after a crash, but never behind.
        for path in sorted(kept, key=lambda path: not self._is_fixed(path)):
            files[path.as_posix()] = self._put(path, sizes)
        self._remote.write(f"{self._prefix}/{_MANIFEST}", canonical_json(files))
        self._remote.remove(f"{self._prefix}/{name}" for name in sizes.keys() - set(files.values()) - {_MANIFEST})

    def files(self) -> dict[str, str]:
        """Return the SHA-256 of the files in the snapshot by path; empty without a snapshot."""
        manifest = self._remote.read(f"{self._prefix}/{_MANIFEST}")
        return {} if manifest is None else json.loads(manifest)

    def restore(self, files: Mapping[str, str]) -> bool:
        """Restore files, fixed ones last and folder by folder; return False if one is unavailable."""
        logger.info("%s: going on from %d files of %s/%s", self._folder, len(files), self._remote.url, self._prefix)
        sizes = self._remote.sizes(self._prefix)
        fixed: dict[Path, dict[str, str]] = defaultdict(dict)
        try:
            for name, sha256 in files.items():
                path = Path(name)
                if sha256 not in sizes or path.is_absolute() or ".." in path.parts:
                    raise _Damaged(name)
                if self._is_fixed(path):
                    fixed[path.parent][path.name] = sha256
                else:
                    with replaced_atomically(self._folder / path) as work:
                        self._fetch({work: sha256})
            for folder, entries in fixed.items():
                with replaced_folder(self._folder / folder) as work:
                    self._fetch({work / name: sha256 for name, sha256 in entries.items()})
        except _Damaged as damaged:
            logger.warning("%s: the kept file %s is gone or was altered", self._folder, damaged)
            return False
        return True

    def remove(self) -> None:
        sizes = self._remote.sizes(self._prefix)
        # The manifest first: without it there is no snapshot.
        self._remote.remove(f"{self._prefix}/{name}" for name in sorted(sizes, key=lambda name: name != _MANIFEST))

    def _fetch(self, files: Mapping[Path, str]) -> None:
        self._remote.download({f"{self._prefix}/{sha256}": path for path, sha256 in files.items()})
        for path, sha256 in files.items():
            if file_sha256(path) != sha256:
                raise _Damaged(path.name)

    def _put(self, path: Path, sizes: dict[str, int]) -> str:
        """Upload a file unless it is there, and return its SHA-256."""
        file = self._folder / path
        if self._is_fixed(path):
            name = self._digests[path] = self._digests.get(path) or file_sha256(file)
            if sizes.get(name) != file.stat().st_size:
                self._remote.upload({f"{self._prefix}/{name}": file})
            return name
        data = file.read_bytes()
        name = hashlib.sha256(data).hexdigest()
        if sizes.get(name) != len(data):
            self._remote.write(f"{self._prefix}/{name}", data)
        return name
