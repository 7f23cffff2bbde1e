"""Empty SQLite databases that an installation keeps: a new database begins with a copy in place of its migrations.

Migrations of Prefect's database take 5 s and those of MLflow's most of a second, for which the first run of a machine,
of a container or of a test would wait.
"""

import os
import shutil
import sqlite3
import sys
from contextlib import closing, suppress
from importlib.metadata import version
from pathlib import Path

from stillhouse.errors import StoreError
from stillhouse.store.atomic import replaced_atomically, temporary


def kept_database(package: str) -> Path:
    """Return where the installation keeps the one of `package`; another version of it has another."""
    return Path(sys.prefix, "var", "stillhouse", f"{package}-{version(package)}.db")


def begin_with(kept: Path, path: Path) -> None:
    """Make `path` a copy of what is kept; a file that is there already, or made meanwhile, stays."""
    with suppress(OSError), temporary(path, Path.touch) as copy:
        shutil.copyfile(kept, copy)
        os.link(copy, path)


def keep(path: Path, kept: Path) -> None:
    """Keep a copy of a database that nobody writes to, with what is in its write-ahead log.

    An installation that this user may not write to goes on without.
    """
    with (
        suppress(StoreError),
        replaced_atomically(kept) as copy,
        closing(sqlite3.connect(path)) as source,
        closing(sqlite3.connect(copy)) as target,
    ):
        source.backup(target)
