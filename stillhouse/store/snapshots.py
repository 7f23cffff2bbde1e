"""Work under way on object storage: a folder's files as they were at one moment, the newest moment alone.

`underway/<folder>/manifest.json` says which objects beside it are the files, each named by the SHA-256 of its bytes. It
is replaced once they are all there, so that whoever looks finds one whole moment.
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
    """A kept file is not what it was."""


class Snapshots:
    """What object storage keeps of one folder of this machine.

    Files of folders that `is_fixed` names never change once they are there, and may be of any size; others may grow
    while they are read, and are held in memory.

    Args:
        remote: the storage.
        folder: of this machine.
        name: of the folder there.
        is_kept: which files are taken, by their path relative to the folder.
        is_fixed: which of them never change.
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
        self._remote, self._folder, self._place = remote, folder, f"underway/{name}"
        self._is_kept, self._is_fixed = is_kept, is_fixed
        self._digests: dict[Path, str] = {}

    def take(self) -> None:
        """Puts the folder as it is now in the place of what was kept of it.

        Raises:
            FileNotFoundError: a file went away meanwhile; what was kept before stands.
            StoreError: the storage cannot be reached or refuses.
        """
        there = self._remote.sizes(self._place)
        paths = [path.relative_to(self._folder) for path in sorted(self._folder.rglob("*")) if path.is_file()]
        kept = [path for path in paths if self._is_kept(path)]
        files: JsonObject = {}
        # Fixed ones first: what grows may be further than they are, as after a crash, and never behind them.
        for path in sorted(kept, key=lambda path: not self._is_fixed(path)):
            name = self._put_fixed(path, there) if self._is_fixed(path) else self._put_growing(path, there)
            files[path.as_posix()] = name
        self._remote.write(f"{self._place}/{_MANIFEST}", canonical_json(files))
        self._remote.remove(f"{self._place}/{name}" for name in there.keys() - set(files.values()) - {_MANIFEST})

    def files(self) -> dict[str, str]:
        """The files that are kept, by their paths, with the SHA-256 of each; empty where there are none.

        Raises:
            StoreError: the storage cannot be reached or refuses.
        """
        manifest = self._remote.read(f"{self._place}/{_MANIFEST}")
        return {} if manifest is None else json.loads(manifest)

    def restore(self, files: Mapping[str, str]) -> bool:
        """Puts kept files into the folder, the fixed ones last and folder by folder; False where one cannot be had.

        Raises:
            StoreError: the storage cannot be reached, or the folder cannot be written.
        """
        logger.info("%s: going on from %d files of %s/%s", self._folder, len(files), self._remote.url, self._place)
        there = self._remote.sizes(self._place)
        fixed: dict[Path, dict[str, str]] = defaultdict(dict)
        try:
            for name, sha256 in files.items():
                path = Path(name)
                if sha256 not in there or path.is_absolute() or ".." in path.parts:
                    raise _Damaged(name)
                if self._is_fixed(path):
                    fixed[path.parent][path.name] = sha256
                else:
                    with replaced_atomically(self._folder / path) as work:
                        self._fetch({work: sha256})
            for folder, inside in fixed.items():
                with replaced_folder(self._folder / folder) as work:
                    self._fetch({work / name: sha256 for name, sha256 in inside.items()})
        except _Damaged as damaged:
            logger.warning("%s: the kept file %s is gone or was altered", self._folder, damaged)
            return False
        return True

    def remove(self) -> None:
        """Gives up what was kept.

        Raises:
            StoreError: the storage cannot be reached or refuses.
        """
        there = self._remote.sizes(self._place)
        # The manifest first: without it nothing is there.
        self._remote.remove(f"{self._place}/{name}" for name in sorted(there, key=lambda name: name != _MANIFEST))

    def _fetch(self, files: Mapping[Path, str]) -> None:
        self._remote.download({f"{self._place}/{sha256}": path for path, sha256 in files.items()})
        for path, sha256 in files.items():
            if file_sha256(path) != sha256:
                raise _Damaged(path.name)

    def _put_fixed(self, path: Path, there: dict[str, int]) -> str:
        file = self._folder / path
        if path not in self._digests:
            self._digests[path] = file_sha256(file)
        name = self._digests[path]
        if there.get(name) != file.stat().st_size:
            self._remote.upload({f"{self._place}/{name}": file})
        return name

    def _put_growing(self, path: Path, there: dict[str, int]) -> str:
        data = (self._folder / path).read_bytes()
        name = hashlib.sha256(data).hexdigest()
        if there.get(name) != len(data):
            self._remote.write(f"{self._place}/{name}", data)
        return name
