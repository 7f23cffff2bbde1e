"""A real MLflow server that is killed and comes back while a run logs to it."""

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from stillhouse.config import TrackingConfig
from stillhouse.tracking import start_run
from stillhouse.tracking.fallback import RETRY_AFTER_S


def started_server(database: str, artifacts: Path, port: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", database, "--workers", "1"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--artifacts-destination", str(artifacts)]
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    # A session of its own: the server's workers die with it.
    server = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/health").is_success:
                return server
        except httpx.HTTPError:
            time.sleep(0.2)
    kill(server)
    raise TimeoutError("the MLflow server did not start")


def kill(server: subprocess.Popen[bytes]) -> None:
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()


@pytest.mark.slow
def test_a_server_killed_during_a_run_costs_no_metric_no_time_and_one_warning_and_is_used_again_when_it_is_back(
    database: str, client, closed_port: int, tmp_path: Path, fallback_lines, caplog: pytest.LogCaptureFixture
) -> None:
    server = started_server(database, tmp_path / "artifacts", closed_port)
    slowest = 0.0
    step = 0

    def train(seconds: float) -> None:
        nonlocal slowest, step
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            step += 1
            before = time.monotonic()
            run.log_metrics({"sft/loss": 1.0 / step}, step)
            slowest = max(slowest, time.monotonic() - before)
            time.sleep(0.05)

    try:
        config = TrackingConfig(uri=f"http://127.0.0.1:{closed_port}", experiment="outage")
        with start_run(config, tmp_path, "sft") as run:
            train(3.0)
            run.log_table([{"step": 1, "completion": "4", "verified": True}], "generations.json")
            kill(server)
            train(10.0)
            run.log_table([{"step": 2, "completion": "5", "verified": None}], "generations.json")
            server = started_server(database, tmp_path / "artifacts", closed_port)
            train(RETRY_AFTER_S)
            run.log_table([{"step": 3, "completion": "6", "verified": False}], "generations.json")
    finally:
        kill(server)
    assert slowest < 0.5
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "The run goes on" in warnings[0].getMessage()
    lines = fallback_lines(tmp_path)
    missed = [point["step"] for line in lines if line["kind"] == "metrics" for point in line["metrics"]]
    recorded = [metric.step for metric in client.get_metric_history(run.run_id, "sft/loss")]
    assert sorted(missed + recorded) == list(range(1, step + 1))
    assert recorded[0] == 1
    assert recorded[-1] == step
    assert [line["kind"] for line in lines if line["kind"] != "metrics"] == ["table"]
    assert client.get_run(run.run_id).info.status == "FINISHED"
