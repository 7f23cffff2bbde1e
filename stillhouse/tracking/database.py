"""MLflow's database: what a tracking URI of one names, and how one is begun."""

import fcntl
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from stillhouse.errors import TrackingError
from stillhouse.store.empty_database import begin_with, keep, kept_database
from stillhouse.store.private import private_file


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
