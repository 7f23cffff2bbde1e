import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from mlflow import MlflowClient

from stillhouse.store.empty_database import kept_database
from stillhouse.tracking.client import connect
from stillhouse.tracking.database import begin_database


def schema(path: Path) -> list[tuple[object, ...]]:
    """Return all names, and the columns of tables; the order of a table's constraints is MLflow's chance."""
    with closing(sqlite3.connect(path)) as opened:
        named = opened.execute("SELECT type, name FROM sqlite_master ORDER BY type, name").fetchall()
        columns = [opened.execute(f"PRAGMA table_info('{name}')").fetchall() for _, name in named]
        return [*named, *(column for of_table in columns for column in of_table)]


def test_a_new_database_is_as_mlflow_would_make_it_whether_the_installation_keeps_one_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "installation"))
    plain = MlflowClient(f"sqlite:///{tmp_path}/plain.db")
    for name in ("first", "second"):
        assert kept_database("mlflow").exists() == (name == "second")
        client = connect(f"sqlite:///{tmp_path}/{name}/mlflow.db")
        assert schema(tmp_path / name / "mlflow.db") == schema(tmp_path / "plain.db")
        # Where MLflow puts the artifacts of an experiment that nobody uses.
        assert client.get_experiment("0").artifact_location == plain.get_experiment("0").artifact_location
        run = client.create_run(client.create_experiment("ours"))
        assert client.get_run(run.info.run_id).info.status == "RUNNING"
    assert [experiment.name for experiment in client.search_experiments()] == ["ours", "Default"]


def test_tables_that_are_not_known_are_left_to_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def other_version(uri: str) -> None:
        with closing(sqlite3.connect(uri.removeprefix("sqlite:///"))) as opened:
            opened.execute("CREATE TABLE trials (id)")

    monkeypatch.setattr(sys, "prefix", str(tmp_path / "installation"))
    (tmp_path / "mlflow.db").touch()
    begin_database(other_version, f"sqlite:///{tmp_path}/mlflow.db")  # type: ignore[arg-type]
    assert (tmp_path / "mlflow.db").stat().st_size == 0
    assert not kept_database("mlflow").exists()


def test_a_new_database_is_its_owners_alone(tmp_path: Path) -> None:
    connect(f"sqlite:///{tmp_path}/mlflow.db")
    assert (tmp_path / "mlflow.db").stat().st_mode & 0o077 == 0
