"""The edge to MLflow: where it is, and processes that meet a fresh database at the same moment."""

import subprocess
import sys
from pathlib import Path

import pytest

from stillhouse.tracking.client import connect, default_uri

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
