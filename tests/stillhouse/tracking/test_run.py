import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stillhouse.config import TrackingConfig
from stillhouse.tracking import attach, start_run
from stillhouse.tracking.fallback import outage_of

Lines = Callable[[Path], list[dict[str, Any]]]


def history(client: Any, run_id: str, key: str) -> list[tuple[int, float]]:
    return [(metric.step, metric.value) for metric in client.get_metric_history(run_id, key)]


def points_of(lines: list[dict[str, Any]]) -> list[tuple[int, float]]:
    points = [point for line in lines if line["kind"] == "metrics" for point in line["metrics"]]
    return [(point["step"], point["value"]) for point in points]


def test_every_metric_of_every_step_is_recorded_in_order(tracking: TrackingConfig, client: Any, tmp_path: Path) -> None:
    with start_run(tracking, tmp_path, "sft") as run:
        for step in range(1500):
            run.log_metrics({"sft/loss": 1 / (step + 1), "sft/validation_loss": None}, step)
    assert run.run_id is not None
    assert history(client, run.run_id, "sft/loss") == [(step, 1 / (step + 1)) for step in range(1500)]
    assert history(client, run.run_id, "sft/validation_loss") == []
    assert client.get_run(run.run_id).info.status == "FINISHED"


def test_logging_metrics_does_not_wait_for_the_database(tracking: TrackingConfig, tmp_path: Path) -> None:
    with start_run(tracking, tmp_path, "sft") as run:
        started = time.perf_counter()
        for step in range(100):
            run.log_metrics({"sft/loss": 1.0}, step)
        assert time.perf_counter() - started < 0.5  # 100 calls that wait take about two seconds


def test_two_threads_log_to_their_own_runs_and_open_no_other(
    tracking: TrackingConfig, client: Any, tmp_path: Path
) -> None:
    runs = [start_run(tracking, tmp_path, name) for name in ("a", "b")]

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


def test_a_config_becomes_flat_params_and_a_whole_file(tracking: TrackingConfig, client: Any, tmp_path: Path) -> None:
    config = {"sft": {"learning_rate": 1e-4, "modules": ["q", "v"]}, "rollouts": {"system_prompt": "x" * 7000}}
    with start_run(tracking, tmp_path, "distill", params=config) as run:
        pass
    params = client.get_run(run.run_id).data.params
    assert params["sft.learning_rate"] == "0.0001"
    assert params["sft.modules"] == '["q", "v"]'
    assert params["rollouts.system_prompt"].endswith("[cut: 7000 characters in all]")
    path = client.download_artifacts(run.run_id, "config.yaml", str(tmp_path))
    assert "x" * 7000 in Path(path).read_text(encoding="utf-8")


@pytest.mark.parametrize(("error", "status"), [(ValueError, "FAILED"), (KeyboardInterrupt, "KILLED")])
def test_a_run_ends_as_its_block_does(
    tracking: TrackingConfig, client: Any, tmp_path: Path, error: type[BaseException], status: str
) -> None:
    with pytest.raises(error), start_run(tracking, tmp_path, "distill") as run:
        raise error
    assert client.get_run(run.run_id).info.status == status


def test_artifacts_lie_in_the_store(tracking: TrackingConfig, client: Any, tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}", encoding="utf-8")
    with start_run(tracking, tmp_path, "sft") as run:
        run.log_artifacts(folder, "adapter")
    copies = list((tmp_path / "mlartifacts").rglob("adapter/adapter_config.json"))
    assert len(copies) == 1
    assert [item.path for item in client.list_artifacts(run.run_id, "adapter")] == ["adapter/adapter_config.json"]


def test_an_unreachable_server_costs_one_warning_and_no_exception(
    closed_port: int, tmp_path: Path, fallback_lines: Lines, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    config = TrackingConfig(uri=f"http://127.0.0.1:{closed_port}")
    started = time.monotonic()
    with start_run(config, tmp_path, "distill", params={"sft": {"epochs": 1}}) as parent:
        with start_run(config, tmp_path, "sft", parent_run_id=parent.run_id) as child:
            child.log_metrics({"sft/loss": 1.5}, 7)
            with attach(child.uri, child.run_id, tmp_path) as trainer:
                trainer.log_metrics({"sft/loss": 1.25}, 8)
        parent.log_table([{"a": 1}], "samples.json")
    assert time.monotonic() - started < 20
    assert (parent.run_id, parent.pages.run) == (None, None)
    (warning,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "tracking-fallback.jsonl" in warning.getMessage()
    lines = fallback_lines(tmp_path)
    assert points_of(lines) == [(8, 1.25), (7, 1.5)]
    assert {"run", "params", "metrics", "table", "status"} <= {line["kind"] for line in lines}


def test_a_server_that_dies_during_a_run_loses_no_metric(
    closed_port: int, tmp_path: Path, fallback_lines: Lines, monkeypatch: pytest.MonkeyPatch
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


def test_a_record_that_mlflow_refuses_does_not_stop_the_next_one(
    tracking: TrackingConfig, client: Any, tmp_path: Path, fallback_lines: Lines
) -> None:
    with start_run(tracking, tmp_path, "sft") as run:
        run.log_metrics({"not a name!?": 1.0}, 1)
        run.flush()
        run.log_metrics({"sft/loss": 1.0}, 1)
        run.flush()
        assert history(client, run.run_id or "", "sft/loss") == [(1, 1.0)], "seen while the run goes on"
    assert [line["kind"] for line in fallback_lines(tmp_path)] == ["metrics"]
    assert not outage_of(tracking.uri or "").lasts
