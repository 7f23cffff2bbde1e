"""Prefect's database, of which an installation keeps an empty one."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

BEGIN = """
import sys
sys.prefix = sys.argv[1]
from tasks.server.database import begin_database
begin_database()
assert "prefect.server.database" not in sys.modules or sys.argv[2] == "migrates"
"""


def begin(installation: Path, database: Path, what: str) -> None:
    """Begin a database as a server of the installation does."""
    url = f"sqlite+aiosqlite:///{database}"
    env = {**os.environ, "PREFECT_API_DATABASE_CONNECTION_URL": url, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", BEGIN, str(installation), what], env=env, check=True, timeout=300)


def content(database: Path) -> list[tuple[object, ...]]:
    """Return everything that a migration makes, and the last migration."""
    with closing(sqlite3.connect(database)) as opened:
        schema = opened.execute("SELECT type, name, sql FROM sqlite_master ORDER BY type, name").fetchall()
        return [*schema, *opened.execute("SELECT version_num FROM alembic_version").fetchall()]


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one whose first server has begun a database."""
    folder = tmp_path_factory.mktemp("installation")
    begin(folder, folder / "first.db", "migrates")
    return folder


@pytest.mark.slow
def test_the_first_server_of_an_installation_migrates_and_later_ones_begin_with_a_copy(
    installation: Path, tmp_path: Path
) -> None:
    begin(installation, tmp_path / "prefect.db", "copies")
    assert content(tmp_path / "prefect.db") == content(installation / "first.db")
    assert [path.name for path in tmp_path.iterdir()] == ["prefect.db"]


def test_a_database_that_is_there_is_left_alone(installation: Path, tmp_path: Path) -> None:
    (tmp_path / "prefect.db").write_bytes(b"someone's")
    begin(installation, tmp_path / "prefect.db", "leaves it")
    assert (tmp_path / "prefect.db").read_bytes() == b"someone's"


def test_a_folder_that_is_missing_is_left_to_the_servers_error(installation: Path, tmp_path: Path) -> None:
    begin(installation, tmp_path / "missing" / "prefect.db", "leaves it")
    assert list(tmp_path.iterdir()) == []
