"""The edge to MLflow: where it is, and processes that meet a fresh database at the same moment."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from stillhouse.config import TrackingConfig
from stillhouse.tracking import start_run
from stillhouse.tracking.client import RunPages, connect, default_uri

_CHILD = """
import sys
import mlflow
from stillhouse.tracking.client import connect, experiment_id
print("ready", flush=True)
sys.stdin.readline()
client = connect(sys.argv[1])
print(client.create_run(experiment_id(client, "stillhouse", None)).info.run_id)
"""


@pytest.mark.slow
def test_processes_that_open_a_fresh_database_at_once_all_get_a_run(tmp_path: Path) -> None:
    uri = default_uri(tmp_path / "store")
    children = [
        subprocess.Popen([sys.executable, "-c", _CHILD, uri], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    runs = [child.communicate()[0].strip() for child in children]
    assert [child.returncode for child in children] == [0, 0, 0]
    client = connect(uri)
    assert {client.get_run(run).info.status for run in runs} == {"RUNNING"}


def test_a_run_without_a_configured_address_goes_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert default_uri(tmp_path) == f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    assert default_uri(tmp_path) == "http://mlflow:5000"


SERVER = "https://mlflow.example.com"
QUERY = "workflowType=machine_learning"


def test_the_page_of_a_database_run_comes_with_the_command_that_serves_it(
    tracking: TrackingConfig, tmp_path: Path
) -> None:
    with start_run(tracking, tmp_path, "distill") as run:
        pass
    assert run.pages.run is not None
    assert run.pages.run.endswith(f"/runs/{run.run_id}?{QUERY}")
    assert run.pages.ui_command is not None
    assert str(tracking.uri) in run.pages.ui_command


@pytest.mark.parametrize(
    ("pages", "run", "file"),
    [
        (
            RunPages(f"{SERVER}/", "r1", "7"),
            f"{SERVER}/#/experiments/7/runs/r1?{QUERY}",
            f"{SERVER}/#/experiments/7/runs/r1/artifacts/report/report.html?{QUERY}",
        ),
        (RunPages(SERVER, "r1", None), SERVER, None),
        (RunPages(SERVER, None, "7"), None, None),
        (RunPages(None, None, None), None, None),
    ],
    ids=["of a server", "of another process", "never started", "without tracking"],
)
def test_a_run_has_the_pages_that_are_known_of_it(pages: RunPages, run: str | None, file: str | None) -> None:
    assert (pages.run, pages.file("report/report.html")) == (run, file)
    assert pages.ui_command is None


def test_the_command_for_a_database_in_a_folder_with_a_space_can_be_typed_as_it_is() -> None:
    command = RunPages("sqlite:////a store/mlflow.db", "r1", "7").ui_command
    assert command is not None
    assert shlex.split(command)[-2:] == ["--backend-store-uri", "sqlite:////a store/mlflow.db"]
