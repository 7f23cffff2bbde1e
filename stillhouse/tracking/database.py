"""MLflow's database: what a tracking URI of one names, and how one is begun."""

import fcntl
import json
import logging
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

from stillhouse.errors import TrackingError
from stillhouse.store.empty_database import begin_with, keep, kept_database
from stillhouse.store.private import private_file

_LOCATIONS: Final = {
    "experiments": "artifact_location",
    "runs": "artifact_uri",
    "datasets": "dataset_source",
    "tags": "value",
}
"""Columns that may begin with the folder of the store, as a URL, a path or the JSON of a dataset's source."""

_logger = logging.getLogger(__name__)


def is_database(uri: str) -> bool:
    """Return whether a tracking URI names a database rather than a server."""
    return uri.partition(":")[0].partition("+")[0] in {"sqlite", "postgresql", "mysql", "mssql"}


def _sqlite_file(uri: str) -> Path | None:
    """Return the file of a SQLite database; None for any other tracking URI."""
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


def check_database(uri: str) -> None:
    """Open the database once, since MLflow retries for 100 s before it says that it cannot be opened."""
    from sqlalchemy import create_engine
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.pool import NullPool

    try:
        if path := _sqlite_file(uri):
            path.parent.mkdir(parents=True, exist_ok=True)
            private_file(path)
        with create_engine(uri, poolclass=NullPool).connect():
            pass
    except (SQLAlchemyError, OSError, ImportError) as error:
        raise TrackingError(
            f"{uri}: the tracking database cannot be opened: {error}", code="tracking-database"
        ) from error


@contextmanager
def exclusive(uri: str) -> Iterator[None]:
    """Serialise opening a SQLite file: two processes that create its tables at once break each other.

    MLflow's own lock does not cover all of its migrations. The tables of other databases are made beforehand, by
    MLflow's server or `mlflow db upgrade`.
    """
    path = _sqlite_file(uri)
    if path is None:
        yield
        return
    private_file(locked := path.with_name(f"{path.name}.lock"))
    with locked.open("a") as lock:
        with suppress(OSError):  # no locks on this file system
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def begin_database(client_type: type, uri: str) -> None:
    """Give a new SQLite database MLflow's tables, or leave that to MLflow; nobody else may open it meanwhile."""
    path, kept = _sqlite_file(uri), kept_database("mlflow")
    if path is None or path.stat().st_size > 0:
        return
    if not kept.exists():
        _keep_empty(client_type, kept)
    path.unlink()
    begin_with(kept, path)
    private_file(path)


def _keep_empty(client_type: type, kept: Path) -> None:
    """Have the installation keep an empty database, unless this version of MLflow has other tables."""
    with tempfile.TemporaryDirectory(prefix="stillhouse-") as folder:
        empty = Path(folder, "mlflow.db")
        client_type(f"sqlite:///{empty}")
        with closing(sqlite3.connect(empty)) as opened, suppress(sqlite3.Error):
            # Its artifacts would be beside that database. MLflow makes another when it finds none.
            opened.execute("DELETE FROM experiments")
            opened.commit()
            keep(empty, kept)


def follow_store(uri: str) -> None:
    """Make the locations in a SQLite database those of the folder that it was moved or copied to with its artifacts.

    Others stay: of object storage, of a person's choice, of stores whose files are not here. Raises TrackingError if
    the database cannot be written.
    """
    path = _sqlite_file(uri)
    if path is None or not (artifacts := path.absolute().with_name("mlartifacts")).is_dir():
        return
    here, present = artifacts.parent, {folder.name for folder in artifacts.iterdir()}
    runs = "SELECT artifact_location, run_uuid FROM experiments JOIN runs USING (experiment_id)"
    try:
        with closing(sqlite3.connect(path, timeout=60.0)) as opened, opened:
            for location in {place for place, run in opened.execute(runs) if run in present}:
                was = Path(url2pathname(urlsplit(location).path)).parent
                # The same folder may have several names: a link, a mount.
                if location.startswith("file:") and not (was.is_dir() and was.samefile(here)):
                    _rewrite(opened, was, here)
    except sqlite3.Error as error:
        raise TrackingError(
            f"{path}: its store was moved here, and the places of its files cannot be rewritten: {error}. Make it "
            "writable for this user, end what uses it, and run the same command again",
            code="tracking-database",
        ) from error


def _rewrite(opened: sqlite3.Connection, was: Path, here: Path) -> None:
    _logger.info("MLflow's files of %s are looked for in %s from now on", was, here)
    for form in ("{}/".format, lambda path: f"{path.as_uri()}/", lambda path: json.dumps({"uri": f"{path}/"})[:-2]):
        old = form(was)
        for table, column in _LOCATIONS.items():
            opened.execute(
                f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE substr({column}, 1, ?) = ?",
                (form(here), len(old) + 1, len(old), old),
            )
