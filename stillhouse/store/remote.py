"""A folder on object storage, by its fsspec URL: `s3://BUCKET/PREFIX` and whatever else fsspec has a package for.

Who may read and write it is decided by the variables that the storage's own tools know (AWS_ACCESS_KEY_ID and its like,
AWS_ENDPOINT_URL for a server that is not Amazon's), never by a config. What fails for passing reasons is tried again by
the storage's client.
"""

import errno
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

from stillhouse.errors import ConfigError, StoreError

_OF_THIS_MACHINE: Final = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
_EXTRAS: Final = {"s3": "s3"}
# Each holds up to 100 MiB of its file in memory.
_AT_ONCE: Final = 8


class RemoteFolder:
    """Objects below one URL, by their names relative to it. Nothing is asked before the first use.

    Each object is written whole or not at all, as object storage has it. Every method raises:

    Raises:
        ConfigError: no installed package knows the URL's protocol.
        StoreError: the storage cannot be reached, or refuses.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def read(self, name: str) -> bytes | None:
        """The bytes of an object; None where there is none."""
        with self._told("read", name) as files:
            try:
                found: bytes = files.cat_file(self._path(name))
            except FileNotFoundError:
                return None
            return found

    def write(self, name: str, data: bytes) -> None:
        """Replaces an object."""
        with self._told("written", name) as files:
            files.pipe_file(self._path(name), data)

    def sizes(self, folder: str) -> dict[str, int]:
        """The size in bytes of every object below `folder`, by its name relative to that."""
        with self._told("listed", folder) as files:
            start = self._path(folder)
            found = files.find(start, detail=True)
            return {path.removeprefix(f"{start}/"): entry["size"] for path, entry in found.items()}

    def upload(self, paths: Mapping[str, Path]) -> None:
        """Writes local files, several at once, each under its name."""
        with self._told("written", next(iter(paths), "")) as files:
            files.put(list(map(str, paths.values())), [self._path(name) for name in paths], batch_size=_AT_ONCE)

    def download(self, paths: Mapping[str, Path]) -> None:
        """Reads objects, all of which are there, into local files, several at once."""
        for path in paths.values():
            path.parent.mkdir(parents=True, exist_ok=True)
        with self._told("read", next(iter(paths), "")) as files:
            files.get([self._path(name) for name in paths], list(map(str, paths.values())), batch_size=_AT_ONCE)

    def remove(self, names: Iterable[str]) -> None:
        """Removes objects, those that are there."""
        with self._told("removed", "") as files:
            for name in names:
                try:
                    files.rm_file(self._path(name))
                except FileNotFoundError:
                    continue

    def _path(self, name: str) -> str:
        return f"{self.url.partition('://')[2]}/{name}".rstrip("/")

    @contextmanager
    def _told(self, verb: str, name: str) -> Iterator[Any]:
        """The storage's client; its errors, which are other ones in each package, become ours."""
        try:
            yield filesystem(self.url.partition("://")[0])
        except ConfigError:
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno in _OF_THIS_MACHINE:
                raise
            raise StoreError(
                f"runtime.store: {self.url}/{name} cannot be {verb}: {type(error).__name__}: {error}. Look at the "
                "address, the network and the storage's variables in the environment (AWS_ACCESS_KEY_ID, "
                "AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL); then run the same command again: what finished is kept"
            ) from error


@cache
def filesystem(protocol: str) -> Any:
    """The client for URLs that start with `protocol`, one for the process.

    Raises:
        ConfigError: no installed package knows it.
    """
    import fsspec

    try:
        # A remembered listing would not show what other machines wrote since.
        return fsspec.filesystem(protocol, use_listings_cache=False)
    except (ImportError, ValueError) as error:
        extra = _EXTRAS.get(protocol)
        remedy = f"pip install -e '.[{extra}]'" if extra else f"install the package that fsspec needs for {protocol}://"
        raise ConfigError(
            f"runtime.store starts with {protocol}://, which nothing that is installed can open: {error}. {remedy}, or "
            "name a local folder"
        ) from error
