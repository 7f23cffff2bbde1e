import json
import logging
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stillhouse.config import TrackingConfig
from stillhouse.tracking import TrackedRun, attach, start_run
from stillhouse.tracking.fallback import is_sent, outage_of
from stillhouse.tracking.metric_writer import MetricPoint
from tests.waiting import until


def history(client: Any, run_id: str, key: str) -> list[tuple[int, float]]:
    return [(metric.step, metric.value) for metric in client.get_metric_history(run_id, key)]


def points_of(lines: list[dict[str, Any]]) -> list[tuple[int, float]]:
    points = [point for line in lines if line["kind"] == "metrics" for point in line["metrics"]]
    return [(point["step"], point["value"]) for point in points]


@pytest.fixture
def start(tracking: TrackingConfig, tmp_path: Path) -> Callable[..., TrackedRun]:
    """Start a run of the test's experiment, whose fallback file is in the test's folder."""
    return partial(start_run, tracking, tmp_path)


def test_every_metric_of_every_step_is_recorded_in_order(start, client) -> None:
    with start("sft") as run:
        for step in range(1500):
            run.log_metrics({"sft/loss": 1 / (step + 1), "sft/validation_loss": None}, step)
    assert run.run_id is not None
    assert history(client, run.run_id, "sft/loss") == [(step, 1 / (step + 1)) for step in range(1500)]
    assert history(client, run.run_id, "sft/validation_loss") == []
    assert client.get_run(run.run_id).info.status == "FINISHED"


def test_logging_metrics_does_not_wait_for_the_database(start, tracking: TrackingConfig, client) -> None:
    with start("sft") as run, closing(sqlite3.connect(str(tracking.uri).removeprefix("sqlite:///"))) as database:
        database.execute("BEGIN EXCLUSIVE")
        for step in range(100):
            run.log_metrics({"sft/loss": 1.0}, step)
        database.rollback()
    # A call that waits would give up at the locked database, and its value would be in the fallback file.
    assert history(client, run.run_id, "sft/loss") == [(step, 1.0) for step in range(100)]


def test_two_threads_log_to_their_own_runs_and_open_no_other(start, tracking: TrackingConfig, client) -> None:
    runs = [start(name) for name in ("a", "b")]

    def work(index: int) -> None:
        for step in range(50):
            runs[index].log_metrics({"value": float(index)}, step)
        runs[index].finish()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    experiment = client.get_experiment_by_name(tracking.experiment)
    assert {run.info.run_id for run in client.search_runs([experiment.experiment_id])} == {run.run_id for run in runs}
    for index, run in enumerate(runs):
        assert history(client, run.run_id or "", "value") == [(step, float(index)) for step in range(50)]


def test_a_config_becomes_flat_params_and_a_whole_file(start, client, tmp_path: Path) -> None:
    config = {"sft": {"learning_rate": 1e-4, "modules": ["q", "v"]}, "rollouts": {"system_prompt": "x" * 7000}}
    with start("distill", params=config) as run:
        pass
    params = client.get_run(run.run_id).data.params
    assert params["sft.learning_rate"] == "0.0001"
    assert params["sft.modules"] == '["q", "v"]'
    assert params["rollouts.system_prompt"].endswith("[cut: 7000 characters in all]")
    path = client.download_artifacts(run.run_id, "config.yaml", str(tmp_path))
    assert "x" * 7000 in Path(path).read_text(encoding="utf-8")


@pytest.mark.parametrize(("error", "status"), [(ValueError, "FAILED"), (KeyboardInterrupt, "KILLED")])
def test_a_run_ends_as_its_block_does(start, client, error: type[BaseException], status: str) -> None:
    with pytest.raises(error), start("distill") as run:
        raise error
    assert client.get_run(run.run_id).info.status == status


def test_artifacts_lie_in_the_store(start, client, tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}", encoding="utf-8")
    with start("sft") as run:
        run.log_artifacts(folder, "adapter")
    copies = list((tmp_path / "mlartifacts").rglob("adapter/adapter_config.json"))
    assert len(copies) == 1
    assert [item.path for item in client.list_artifacts(run.run_id, "adapter")] == ["adapter/adapter_config.json"]


def test_an_unreachable_server_costs_one_warning_and_no_exception(
    closed_port: int, tmp_path: Path, fallback_lines, caplog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    config = TrackingConfig(uri=f"http://127.0.0.1:{closed_port}")
    with start_run(config, tmp_path, "distill", params={"sft": {"epochs": 1}}) as parent:
        with start_run(config, tmp_path, "sft", parent_run_id=parent.run_id) as child:
            child.log_metrics({"sft/loss": 1.5}, 7)
            with attach(child.uri, child.run_id, tmp_path) as trainer:
                trainer.log_metrics({"sft/loss": 1.25}, 8)
        parent.log_table([{"a": 1}], "samples.json")
    assert not is_sent(parent.run_id)
    assert parent.pages.run is None
    (warning,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "tracking-fallback.jsonl" in warning.getMessage()
    lines = fallback_lines(tmp_path)
    assert points_of(lines) == [(8, 1.25), (7, 1.5)]
    assert {"run", "params", "metrics", "table", "status"} <= {line["kind"] for line in lines}


def test_a_server_that_dies_during_a_run_loses_no_metric(
    closed_port: int, tmp_path: Path, fallback_lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    run = attach(f"http://127.0.0.1:{closed_port}", "a" * 32, tmp_path)
    for step in range(20):
        run.log_metrics({"sft/loss": float(step)}, step)
    run.finish("FAILED")
    lines = fallback_lines(tmp_path)
    assert points_of(lines) == [(step, float(step)) for step in range(20)]
    assert lines[-1]["status"] == "FAILED"
    assert all(line["run_id"] == "a" * 32 for line in lines)


def test_metrics_of_any_tags_arrive_and_stay_apart(start, tracking: TrackingConfig, client, tmp_path: Path) -> None:
    tags = ["a@b", "a_b", "x" * 300, "x" * 301, "../../etc", "a|b=c,d%", "", " lead", "größe/ü", "plain"]
    with start("evaluation", params={"prompts": {"verifier_by_tag": dict.fromkeys(tags, "math")}}) as run:
        run.log_metrics({f"accuracy_by_tag/{tag}": float(number) for number, tag in enumerate(tags)}, 1)
        run.log_metrics({"sft/loss": 0.5}, 1)
    data = client.get_run(run.run_id).data
    assert sorted(data.metrics.values()) == sorted([0.5, *map(float, range(len(tags)))])
    assert data.metrics["accuracy_by_tag/plain"] == 9.0
    assert list(data.params.values()) == ["math"] * len(tags)
    assert not (tmp_path / "tracking-fallback.jsonl").exists()


def test_where_mlflow_refuses_one_metric_the_others_arrive(
    start, tracking: TrackingConfig, client, tmp_path: Path, fallback_lines
) -> None:
    with start("sft") as run:
        names = ["sft/loss", "not a name!?", "sft/nll", "grad", "rate"]
        run._writer.put([MetricPoint(name, 1.0, 1, 0) for name in names])
        run.flush()
        run.log_metrics({"sft/loss": 1.0}, 2)
        run.flush()
        assert history(client, run.run_id or "", "sft/loss") == [(1, 1.0), (2, 1.0)], "seen while the run goes on"
        assert client.get_run(run.run_id).data.metrics.keys() == set(names) - {"not a name!?"}
    [line] = fallback_lines(tmp_path)
    assert [point["key"] for point in line["metrics"]] == ["not a name!?"]
    assert not outage_of(tracking.uri or "").lasts


def test_nested_runs_datasets_tables_and_origin_are_where_mlflow_looks_for_them(start, client) -> None:
    with start("distill", tags={"prefect.flow_run_id": "f1", "absent": None}) as parent:
        child = start("sft", parent_run_id=parent.run_id)
        child.log_dataset("train", "/store/artifacts/dataset/ab", "c" * 64, "training", num_rows=12)
        child.log_table([{"prompt": "2+2", "turns": 2}, {"prompt": "3+3", "turns": 1}], "samples.json")
        child.finish()
    recorded = client.get_run(child.run_id)
    assert recorded.data.tags["mlflow.parentRunId"] == parent.run_id
    assert recorded.data.tags["mlflow.source.type"] == "LOCAL"
    assert json.loads(recorded.data.tags["mlflow.loggedArtifacts"]) == [{"path": "samples.json", "type": "table"}]
    (used,) = recorded.inputs.dataset_inputs
    assert (used.dataset.name, used.dataset.digest) == ("train", "c" * 36)
    assert json.loads(used.dataset.source) == {"uri": "/store/artifacts/dataset/ab"}
    assert [(tag.key, tag.value) for tag in used.tags] == [("mlflow.data.context", "training")]
    tags = client.get_run(parent.run_id).data.tags
    assert tags["prefect.flow_run_id"] == "f1"
    assert "absent" not in tags


def test_an_attached_run_is_left_running_for_its_owner(start, client, tmp_path: Path) -> None:
    with start("sft") as run:
        with attach(run.uri, run.run_id, tmp_path) as child:
            child.log_metrics({"sft/loss": 2.0}, 1)
        recorded = client.get_metric_history(run.run_id, "sft/loss")
        assert [(metric.step, metric.value) for metric in recorded] == [(1, 2.0)]
        assert client.get_run(run.run_id).info.status == "RUNNING"


def test_a_resumed_run_keeps_its_params_and_takes_new_ones(
    start, client, tmp_path: Path, fallback_lines, caplog: pytest.LogCaptureFixture
) -> None:
    with start("sft", params={"sft": {"learning_rate": 0.1}}) as run:
        with attach(run.uri, run.run_id, tmp_path) as resumed:
            resumed.send("params", {"params": {"sft.learning_rate": "0.2", "sft.epochs": "3"}})
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


def test_a_database_that_cannot_be_written_costs_one_warning(
    tmp_path: Path, fallback_lines, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "taken").write_text("a file where a folder should be", encoding="utf-8")
    config = TrackingConfig(uri=f"sqlite:///{tmp_path}/taken/mlflow.db")
    with start_run(config, tmp_path, "distill") as run:
        run.log_metrics({"accuracy": 0.5})
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
    assert [line["kind"] for line in fallback_lines(tmp_path)] == ["run", "metrics", "status"]


def test_a_store_that_cannot_be_written_at_all_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("", encoding="utf-8")
    with start_run(TrackingConfig(), tmp_path / "taken", "distill", params={"a": 1}) as run:
        run.log_metrics({"accuracy": 0.5})
    assert not is_sent(run.run_id)


def test_a_parent_run_has_the_load_of_the_machine_and_a_nested_one_has_not(
    start, client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.1")
    with start("distill") as parent, start("sft", parent_run_id=parent.run_id) as nested:
        assert until(lambda: "system/cpu_utilization_percentage" in client.get_run(parent.run_id).data.metrics)
        assert not client.get_run(nested.run_id).data.metrics
