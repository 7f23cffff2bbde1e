import shutil
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from mlflow import MlflowClient

from stillhouse.config import TrackingConfig
from stillhouse.errors import TrackingError
from stillhouse.store.empty_database import kept_database
from stillhouse.tracking import start_run
from stillhouse.tracking.client import connect, default_uri
from stillhouse.tracking.database import begin_database, follow_store


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


@pytest.fixture
def store(tmp_path: Path) -> tuple[Path, str]:
    """Return a store whose database has one run with a file and a dataset, and the id of the run."""
    root = tmp_path / "a store"
    (tmp_path / "card.md").write_text("a card")
    with start_run(TrackingConfig(), root, "distill") as run:
        run.log_artifact(tmp_path / "card.md")
        run.log_dataset("rows", str(root / "artifacts" / "rows"), "digest", "training")
    return root, str(run.run_id)


@pytest.mark.parametrize("relocate", [shutil.move, shutil.copytree])
def test_locations_follow_a_store_that_is_moved_or_copied(
    store: tuple[Path, str], tmp_path: Path, relocate: Callable[[Path, Path], object]
) -> None:
    (was, run_id), here = store, tmp_path / "elsewhere"
    client = connect(default_uri(was))
    of_person = client.create_experiment("a person's", artifact_location="s3://bucket/mlartifacts")
    before = sorted(was.rglob("*"))
    relocate(was, here)
    client = connect(default_uri(here))
    assert Path(client.download_artifacts(run_id, "card.md", str(tmp_path))).read_text() == "a card"
    assert str(here / "artifacts" / "rows") in client.get_run(run_id).inputs.dataset_inputs[0].dataset.source
    assert client.get_experiment(of_person).artifact_location == "s3://bucket/mlartifacts"
    with start_run(TrackingConfig(), here, "next") as run:
        run.log_artifact(tmp_path / "card.md")
    assert (here / "mlartifacts" / str(run.run_id) / "artifacts" / "card.md").exists()
    assert sorted(was.rglob("*")) == (before if relocate is shutil.copytree else [])


def test_files_of_another_store_and_the_same_folder_by_another_name_stay_where_they_are(
    store: tuple[Path, str], tmp_path: Path
) -> None:
    root, _ = store
    location = connect(default_uri(root)).get_experiment_by_name("stillhouse").artifact_location
    (tmp_path / "link").symlink_to(root)
    follow_store(default_uri(tmp_path / "link"))
    shared = tmp_path / "shared"
    (shared / "mlartifacts").mkdir(parents=True)
    shutil.copy(root / "mlflow.db", shared)
    for folder in (root, shared):
        found = connect(default_uri(folder)).get_experiment_by_name("stillhouse")
        assert found.artifact_location == location


def test_a_moved_database_that_cannot_be_written_is_an_error(store: tuple[Path, str], tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(store[0], copy)
    with closing(sqlite3.connect(copy / "mlflow.db")) as opened:
        # As a database on a disk that is mounted for reading: root may write any file.
        opened.execute("CREATE TRIGGER t BEFORE UPDATE ON runs BEGIN SELECT RAISE(ABORT, 'readonly database'); END")
        with pytest.raises(TrackingError, match=r"moved here, .* readonly database"):
            follow_store(default_uri(copy))
        # All or nothing.
        of_experiments = opened.execute("SELECT artifact_location FROM experiments").fetchall()
    assert (f"{store[0].as_uri()}/mlartifacts",) in of_experiments
