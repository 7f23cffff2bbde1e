import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stillhouse.config import TrackingConfig
from stillhouse.tracking import attach, start_run

Lines = Callable[[Path], list[dict[str, Any]]]


def test_nested_runs_datasets_tables_and_origin_are_where_mlflow_looks_for_them(
    tracking: TrackingConfig, client: Any, tmp_path: Path
) -> None:
    with start_run(tracking, tmp_path, "distill", tags={"prefect.flow_run_id": "f1", "absent": None}) as parent:
        child = start_run(tracking, tmp_path, "sft", parent_run_id=parent.run_id)
        child.log_dataset("train", "/store/artifacts/dataset/ab", "c" * 64, "training", num_rows=12)
        child.log_table([{"prompt": "2+2", "turns": 2}, {"prompt": "3+3", "turns": 1}], "samples.json")
        child.finish()
    recorded = client.get_run(child.run_id)
    assert recorded.data.tags["mlflow.parentRunId"] == parent.run_id
    assert recorded.data.tags["mlflow.source.type"] == "LOCAL"
    assert recorded.data.tags["stillhouse.pid"].isdigit()
    assert json.loads(recorded.data.tags["mlflow.loggedArtifacts"]) == [{"path": "samples.json", "type": "table"}]
    (used,) = recorded.inputs.dataset_inputs
    assert (used.dataset.name, used.dataset.digest) == ("train", "c" * 36)
    assert json.loads(used.dataset.source) == {"uri": "/store/artifacts/dataset/ab"}
    assert [(tag.key, tag.value) for tag in used.tags] == [("mlflow.data.context", "training")]
    tags = client.get_run(parent.run_id).data.tags
    assert tags["prefect.flow_run_id"] == "f1"
    assert "absent" not in tags


def test_an_attached_run_is_left_running_for_its_owner(tracking: TrackingConfig, client: Any, tmp_path: Path) -> None:
    with start_run(tracking, tmp_path, "sft") as run:
        with attach(run.uri, run.run_id, tmp_path) as child:
            child.log_metrics({"sft/loss": 2.0}, 1)
        recorded = client.get_metric_history(run.run_id, "sft/loss")
        assert [(metric.step, metric.value) for metric in recorded] == [(1, 2.0)]
        assert client.get_run(run.run_id).info.status == "RUNNING"


def test_a_resumed_run_keeps_its_params_and_takes_new_ones(
    tracking: TrackingConfig, client: Any, tmp_path: Path, fallback_lines: Lines, caplog: pytest.LogCaptureFixture
) -> None:
    with start_run(tracking, tmp_path, "sft", params={"sft": {"learning_rate": 0.1}}) as run:
        with attach(run.uri, run.run_id, tmp_path) as resumed:
            resumed.log_params({"sft": {"learning_rate": 0.2, "epochs": 3}})
        params = client.get_run(run.run_id).data.params
        assert params == {"sft.learning_rate": "0.1", "sft.epochs": "3"}
        assert "sft.learning_rate" in caplog.text
        assert fallback_lines(tmp_path) == []


def test_tracking_that_is_off_records_nothing_and_imports_nothing(tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from stillhouse.config import TrackingConfig
from stillhouse.tracking import attach, start_run
with start_run(TrackingConfig(enabled=False), Path({str(tmp_path)!r}), "distill", params={{"a": 1}}) as run:
    run.log_metrics({{"x": 1.0}}, 1)
    run.log_table([{{"a": 1}}], "t.json")
    run.log_dataset("d", "/d", "e", "training")
    run.set_tags({{"a": "b"}})
    with attach(run.uri, run.run_id, Path({str(tmp_path)!r})) as child:
        child.log_metrics({{"x": 1.0}}, 1)
assert run.uri is run.run_id is run.pages.run is run.pages.ui_command is None
assert not {{"mlflow", "torch", "matplotlib"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_fresh_database_is_made_without_a_word_on_the_terminal(tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
from stillhouse.config import TrackingConfig
from stillhouse.tracking import start_run
with start_run(TrackingConfig(), Path({str(tmp_path)!r}), "distill", params={{"a": 1}}) as run:
    run.log_metrics({{"x": 1.0}}, 1)
assert run.run_id is not None
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("", "")
    assert (tmp_path / "mlflow.db").exists()


def test_a_database_that_cannot_be_written_costs_one_warning_and_little_time(
    tmp_path: Path, fallback_lines: Lines, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "taken").write_text("a file where a folder should be", encoding="utf-8")
    config = TrackingConfig(uri=f"sqlite:///{tmp_path}/taken/mlflow.db")
    started = time.monotonic()
    with start_run(config, tmp_path, "distill") as run:
        run.log_metrics({"accuracy": 0.5})
    assert time.monotonic() - started < 10  # MLflow alone retries for 100 s
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
    assert [line["kind"] for line in fallback_lines(tmp_path)] == ["run", "metrics", "status"]


def test_a_store_that_cannot_be_written_at_all_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("", encoding="utf-8")
    with start_run(TrackingConfig(), tmp_path / "taken", "distill", params={"a": 1}) as run:
        run.log_metrics({"accuracy": 0.5})
    assert run.run_id is None
