import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from stillhouse.store.empty_database import begin_with, keep, kept_database


@pytest.fixture
def opened(tmp_path: Path) -> sqlite3.Connection:
    """A database whose table is in its write-ahead log."""
    connection = sqlite3.connect(tmp_path / "first.db")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE runs (id)")
    connection.commit()
    return connection


def tables(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [name for (name,) in connection.execute("SELECT name FROM sqlite_master")]


def test_a_database_begins_as_a_copy_of_what_is_kept(tmp_path: Path, opened: sqlite3.Connection) -> None:
    with closing(opened):
        keep(tmp_path / "first.db", tmp_path / "var" / "kept.db")
    begin_with(tmp_path / "var" / "kept.db", tmp_path / "next.db")
    assert tables(tmp_path / "next.db") == ["runs"]
    assert {path.name for path in (tmp_path / "var").iterdir()} == {"kept.db"}


def test_what_another_process_has_made_meanwhile_stays(tmp_path: Path, opened: sqlite3.Connection) -> None:
    with closing(opened):
        keep(tmp_path / "first.db", tmp_path / "kept.db")
    (tmp_path / "next.db").write_bytes(b"someone's")
    begin_with(tmp_path / "kept.db", tmp_path / "next.db")
    assert (tmp_path / "next.db").read_bytes() == b"someone's"
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".part")]


def test_an_installation_that_cannot_be_written_to_keeps_nothing(tmp_path: Path, opened: sqlite3.Connection) -> None:
    (tmp_path / "var").write_text("not a folder")
    with closing(opened):
        keep(tmp_path / "first.db", tmp_path / "var" / "kept.db")
    begin_with(tmp_path / "var" / "kept.db", tmp_path / "next.db")
    assert not (tmp_path / "next.db").exists()


def test_each_version_of_a_package_has_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert kept_database("pytest") == tmp_path / "var" / "stillhouse" / f"pytest-{pytest.__version__}.db"
