"""Prefect's database: a new one begins with a copy of an empty one that is migrated once an installation.

`python -m tasks.server.database` has the installation keep it, and MLflow's; else the first run does.
"""

import asyncio
import os
import tempfile
from pathlib import Path

from stillhouse.store.empty_database import begin_with, keep, kept_database
from stillhouse.tracking.client import connect
from tasks.server.environment import set_defaults


def begin_database() -> None:
    """Have a new SQLite database of the settings begin as a copy; call it in a server before it opens its database."""
    path, kept = _new_file(), kept_database("prefect")
    if path is None:
        return
    if kept.exists():
        begin_with(kept, path)
    else:
        from prefect.server.database import provide_database_interface

        asyncio.run(provide_database_interface().create_db())
        keep(path, kept)


def _new_file() -> Path | None:
    """Return the file of the settings' SQLite database if it is not there yet."""
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL
    from sqlalchemy import make_url

    url = make_url(str(PREFECT_API_DATABASE_CONNECTION_URL.value()))
    if url.get_backend_name() != "sqlite" or not url.database or url.database == ":memory:" or url.query:
        return None
    path = Path(url.database)
    return path if path.parent.is_dir() and not path.exists() else None


def main() -> None:
    """Begin a database of each kind, for the copies that the installation keeps of them."""
    with tempfile.TemporaryDirectory(prefix="stillhouse-") as folder:
        os.environ["PREFECT_HOME"] = folder
        os.environ["PREFECT_API_DATABASE_CONNECTION_URL"] = f"sqlite+aiosqlite:///{folder}/prefect.db"
        # Before Prefect is imported: nothing is told to anybody from an installation either.
        set_defaults()
        begin_database()
        connect(f"sqlite:///{folder}/mlflow.db")


if __name__ == "__main__":
    main()
