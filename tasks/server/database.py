"""Prefect's empty database, migrated once an installation: a new PREFECT_HOME begins with a copy of it.

A new SQLite database takes Prefect's server 5 s of migrations, for which the first run of a machine, of a container or
of a test would wait. `python -m tasks.server.database` makes the copy while installing; else the first server does.
"""

import asyncio
import os
import shutil
import sqlite3
import sys
import tempfile
from contextlib import closing, suppress
from importlib.metadata import version
from pathlib import Path

from stillhouse.errors import StoreError
from stillhouse.store.atomic import replaced_atomically, temporary


def begin_database() -> None:
    """Has a new SQLite database of the settings begin as a copy; call it in a server before it opens its database."""
    path = _new_file()
    if path is None:
        return
    template = _template()
    if not template.exists():
        _migrate()
        # An installation that this user may not write to goes on without.
        with suppress(StoreError):
            _keep(path, template)
        return
    with suppress(OSError), temporary(path, Path.touch) as copy:
        shutil.copyfile(template, copy)
        # Another server may have begun it meanwhile, and have written to it.
        os.link(copy, path)


def _template() -> Path:
    """Where the copy of this installation is; another version of Prefect has another."""
    return Path(sys.prefix, "var", "stillhouse", f"prefect-{version('prefect')}.db")


def _new_file() -> Path | None:
    """The file of the settings' SQLite database if it is not there yet."""
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL
    from sqlalchemy import make_url

    url = make_url(str(PREFECT_API_DATABASE_CONNECTION_URL.value()))
    if url.get_backend_name() != "sqlite" or not url.database or url.database == ":memory:" or url.query:
        return None
    path = Path(url.database)
    return path if path.parent.is_dir() and not path.exists() else None


def _migrate() -> None:
    from prefect.server.database import provide_database_interface

    asyncio.run(provide_database_interface().create_db())


def _keep(path: Path, template: Path) -> None:
    """Copies a database that nobody writes to, with what is in its write-ahead log."""
    with (
        replaced_atomically(template) as copy,
        closing(sqlite3.connect(path)) as source,
        closing(sqlite3.connect(copy)) as target,
    ):
        source.backup(target)


def main() -> None:
    """Makes the copy unless it is there."""
    if _template().exists():
        return
    with tempfile.TemporaryDirectory(prefix="stillhouse-prefect-") as home:
        os.environ["PREFECT_API_DATABASE_CONNECTION_URL"] = f"sqlite+aiosqlite:///{home}/prefect.db"
        begin_database()


if __name__ == "__main__":
    main()
