import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from stillhouse.config import TrackingConfig
from stillhouse.progress.run_state import Bar
from stillhouse.progress.state import RolloutProgress, UsdRange
from stillhouse.tracking import start_run
from stillhouse.tracking.client import connect
from tasks.run.progress_artifact import ProgressArtifacts, metrics_of

NOBODY = {PREFECT_API_URL: "http://127.0.0.1:9/api", PREFECT_CLIENT_MAX_RETRIES: 0}
BUSY = RolloutProgress(
    done=5, total=10, rows_per_s=2.0, limit=4, retries={"stall": 1, "transient": 2}, usd=0.5,
    usd_projected=UsdRange(0.8, 1.0, 1.2),
)  # fmt: skip


def _wait_for(happened: Callable[[], Any]) -> None:
    until = time.monotonic() + 60
    while not happened() and time.monotonic() < until:
        time.sleep(0.02)
    assert happened()


def test_an_unreachable_prefect_costs_only_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    record = start_run(TrackingConfig(enabled=False), tmp_path, "generate")
    bars: dict[str, Bar] = {}
    with temporary_settings(NOBODY), ProgressArtifacts(record, lambda: dict(bars), every_s=0.01):
        for done in range(1, 4):
            bars["sft"] = Bar(done, 10, 9.0, {"loss": 0.5})
            _wait_for(lambda: _warnings(caplog))
            time.sleep(0.05)
    (warning,) = _warnings(caplog)
    assert "The run goes on" in warning.getMessage()


def _warnings(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [each for each in caplog.records if (each.name, each.levelno) == ("stillhouse.progress", logging.WARNING)]


def test_mlflow_gets_a_curve_of_each_figure_that_is_known(tmp_path: Path) -> None:
    bars = {"rollouts": Bar(5, 10, 7.2, rollouts=BUSY)}
    with start_run(TrackingConfig(), tmp_path, "generate") as record, temporary_settings(NOBODY):
        with ProgressArtifacts(record, lambda: dict(bars), every_s=0.01) as page:
            _wait_for(lambda: page._published)
            bars["rollouts"] = Bar(10, 10, 31.0, rollouts=RolloutProgress(done=10, total=10, usd=0.9))
        client = connect(str(record.uri))
        record.flush()
        run_id = str(record.run_id)
    points = client.get_metric_history(run_id, "rollouts/done")
    assert [(point.step, point.value) for point in points] == [(7, 5.0), (31, 10.0)]
    assert client.get_run(run_id).data.metrics["rollouts/usd"] == 0.9
    assert "rollouts/requests_per_minute" not in client.get_run(run_id).data.metrics


def test_unknown_figures_are_not_zero() -> None:
    metrics = metrics_of(RolloutProgress(done=0, total=None))
    assert {name for name, value in metrics.items() if value is None} == {
        "requests_per_minute", "tokens_per_minute", "usd", "usd_projected", "eta_s",
    }  # fmt: skip
    assert metrics_of(BUSY)["retries"] == 3
    assert metrics_of(BUSY)["usd_projected"] == 1.0
