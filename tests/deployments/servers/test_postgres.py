"""Prefect and MLflow on one Postgres, MLflow's artifacts on S3, and a flow that is recorded in both."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.deployments.processes import Prefect, mlflow_server
from tests.provider import Reply, SimulatedProvider, completion

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

PROGRAM = """
from pathlib import Path
from tasks.server.environment import set_defaults
set_defaults()
from flows.generate import generate
from stillhouse.config import load_config
print(generate(load_config(Path("config.json"), [])).dataset.num_rows)
"""


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(query).fetchall()  # type: ignore[call-overload, no-any-return]


def test_a_flow_is_recorded_in_both_databases_and_its_files_are_on_s3(
    postgres: Callable[[str], str], s3: Any, tmp_path: Path
) -> None:
    prefect_db, mlflow_db = postgres("prefect"), postgres("mlflow")
    (tmp_path / "prompts.txt").write_text("What is 2 + 3?\nWhat is 4 + 4?\nName a river.\n")
    with (
        Prefect(tmp_path, database=prefect_db) as prefect,
        mlflow_server(tmp_path, database=mlflow_db, files="s3://bucket/mlflow") as mlflow,
        SimulatedProvider(lambda request: Reply(completion("It is 5."))) as provider,
    ):
        config = {
            "prompts": {"source": "prompts.txt", "held_out_fraction": 0.0},
            "teacher": {"model": "simulated", "base_url": provider.url},
            "dataset": {"validation_fraction": 0.0},
            "tracking": {"uri": mlflow.url},
            "runtime": {"store": "s3://bucket/runs", "scratch": "scratch", "api_key_env": "TEACHER_KEY"},
        }
        (tmp_path / "config.json").write_text(json.dumps(config))
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            cwd=tmp_path,
            env={**prefect.env, "TEACHER_KEY": "secret"},
            capture_output=True,
            text=True,
            timeout=900,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split()[-1] == "3"
    assert rows(prefect_db, "SELECT state_type::text FROM flow_run") == [("COMPLETED",)]
    [(parent,)] = rows(
        mlflow_db,
        "SELECT run_uuid FROM runs EXCEPT SELECT run_uuid FROM tags WHERE key = 'mlflow.parentRunId'",
    )
    assert set(rows(mlflow_db, "SELECT status FROM runs")) == {("FINISHED",)}
    keys = [entry["Key"] for entry in s3.client().list_objects_v2(Bucket="bucket")["Contents"]]
    assert any(key.startswith("mlflow/") and f"/{parent}/artifacts/report/report.html" in key for key in keys)
    assert any(key.startswith("runs/results/dataset/") for key in keys)
    assert not any(b"secret" in path.read_bytes() for path in (tmp_path / "scratch" / "results").rglob("*-*"))
