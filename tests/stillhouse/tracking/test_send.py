"""Records that MLflow did not take come back, whole and once."""

import fcntl
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stillhouse.config import TrackingConfig
from stillhouse.errors import TrackingError
from stillhouse.tracking import attach, start_run
from stillhouse.tracking.client import connect, default_uri
from stillhouse.tracking.fallback import FALLBACK_FILE, outage_of
from stillhouse.tracking.send import Sent, send_fallback


@pytest.fixture
def recorded_away(
    tmp_path: Path, database: str, client: Any, request: pytest.FixtureRequest, closed_port: int
) -> Callable[[], str]:
    """Record a run with a nested one while MLflow is away, for the database; return the name of the experiment."""

    def record() -> str:
        away = f"http://127.0.0.1:{closed_port}"
        config = TrackingConfig(uri=away, experiment=request.node.name)
        (tmp_path / "files").mkdir()
        (tmp_path / "files" / "card.md").write_text("a card")
        with start_run(config, tmp_path, "distill", params={"sft": {"epochs": 1}}, tags={"tag": "x"}) as parent:
            with (
                start_run(config, tmp_path, "sft", parent_run_id=parent.run_id) as child,
                attach(child.uri, child.run_id, tmp_path) as trainer,
            ):
                trainer.log_metrics({"sft/loss": 1.25}, 8)
            parent.set_tags({"stillhouse.sft.run_id": child.run_id})
            parent.log_table([{"a": 1}, {"a": 2}], "samples.json")
            parent.log_artifacts(tmp_path / "files", "model")
            parent.log_dataset("rows", "file:///rows", "digest", "training", 3)
        path = tmp_path / FALLBACK_FILE
        path.write_text(path.read_text().replace(away, database))
        # A server has a place for artifacts; the database in its stead would take the current folder.
        client.create_experiment(request.node.name, artifact_location=(tmp_path / "artifacts").as_uri())
        return request.node.name

    return record


@pytest.fixture(autouse=True)
def quick_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")


def runs_of(client: Any, experiment: str) -> dict[str, Any]:
    found = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    return {run.info.run_name: run for run in found}


def test_runs_that_mlflow_never_saw_come_back_with_all_that_they_recorded(
    tmp_path: Path, client: Any, recorded_away: Callable[[], str]
) -> None:
    experiment = recorded_away()
    sent = send_fallback(tmp_path)
    assert not sent.left
    assert sent.by_kind["run"] == 2
    runs = runs_of(client, experiment)
    assert runs.keys() == {"distill", "sft"}
    parent, child = runs["distill"], runs["sft"]
    assert (parent.info.status, child.info.status) == ("FINISHED", "FINISHED")
    assert parent.data.params == {"sft.epochs": "1"}
    assert child.data.metrics == {"sft/loss": 1.25}
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert parent.data.tags["stillhouse.sft.run_id"] == child.info.run_id
    assert {file.path for file in client.list_artifacts(parent.info.run_id)} >= {"samples.json", "model", "config.yaml"}
    assert [given.dataset.name for given in parent.inputs.dataset_inputs] == ["rows"]
    assert send_fallback(tmp_path) == Sent()
    assert not list(tmp_path.glob("tracking-fallback*.jsonl*"))


def test_sending_that_is_broken_off_goes_on_and_creates_no_run_twice(
    tmp_path: Path, client: Any, database: str, closed_port: int, recorded_away: Callable[[], str]
) -> None:
    experiment = recorded_away()
    path = tmp_path / FALLBACK_FILE
    lines = path.read_text().splitlines(keepends=True)
    away = f"http://127.0.0.1:{closed_port}/again"
    # MLflow goes behind the third record.
    path.write_text("".join(lines[:3]) + "".join(lines[3:]).replace(database, away))
    with pytest.raises(TrackingError, match="kept"):
        send_fallback(tmp_path)
    sending = tmp_path / "tracking-fallback.sending.jsonl"
    sending.write_text(sending.read_text().replace(away, database))
    # Killed behind the creation of a run, before its place was noted.
    (tmp_path / "tracking-fallback.sending.jsonl.done").write_text("0")
    assert not send_fallback(tmp_path).left
    assert len(client.search_runs([client.get_experiment_by_name(experiment).experiment_id])) == 2


def test_metrics_of_an_outage_amid_a_run_reach_that_run(tmp_path: Path, tracking: TrackingConfig, client: Any) -> None:
    with start_run(tracking, tmp_path, "sft") as run:
        run.log_metrics({"sft/loss": 2.0}, 1)
        run.flush()
        outage = outage_of(str(tracking.uri))
        outage.until = float("inf")
        run.log_metrics({"sft/loss": 1.0}, 2)
        run.flush()
        outage.until = float("-inf")
    assert send_fallback(tmp_path).by_kind == {"metrics": 1}
    assert [point.step for point in client.get_metric_history(run.run_id, "sft/loss")] == [1, 2]


def test_what_cannot_be_sent_stays_with_its_reason(tmp_path: Path, database: str, client: Any) -> None:
    experiment = client.create_experiment("left", artifact_location=tmp_path.as_uri())
    run_id = client.create_run(experiment).info.run_id
    common = {"time": 1.0, "uri": database, "run_id": run_id, "run": "sft"}
    gone = {**common, "kind": "artifacts", "folder": str(tmp_path / "gone"), "subfolder": None}
    refused = {**common, "kind": "metrics", "metrics": [{"key": "no!", "value": 1.0, "timestamp_ms": 0, "step": 0}]}
    path = tmp_path / FALLBACK_FILE
    path.write_text("".join(json.dumps(line) + "\n" for line in (gone, refused)) + '{"cut": ')
    left = send_fallback(tmp_path).left
    assert sorted(reason.split(":")[0] for reason in left) == ["a line that cannot be read", "artifacts", "metrics"]
    assert len(path.read_text().splitlines()) == 3
    with path.open("a") as file:
        file.write(json.dumps(refused) + "\n")
    assert send_fallback(tmp_path).left.total() == 4, "a line without an end swallows none"


def test_the_place_of_an_earlier_sending_skips_no_record(tmp_path: Path, tracking: TrackingConfig, client: Any) -> None:
    with start_run(tracking, tmp_path, "sft") as run:
        outage = outage_of(str(tracking.uri))
        outage.until = float("inf")
        run.log_metrics({"sft/loss": 1.0}, 2)
        run.flush()
        outage.until = float("-inf")
    # Killed when all was sent, before this was removed.
    (tmp_path / "tracking-fallback.sending.jsonl.done").write_text("7")
    assert send_fallback(tmp_path).by_kind == {"metrics": 1}
    assert [point.step for point in client.get_metric_history(run.run_id, "sft/loss")] == [2]


def test_two_processes_do_not_send_the_same_records(tmp_path: Path, recorded_away: Callable[[], str]) -> None:
    recorded_away()
    with (tmp_path / "tracking-fallback.lock").open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(TrackingError, match="another process"):
            send_fallback(tmp_path)
    assert send_fallback(tmp_path).by_kind["table"] == 1
    assert send_fallback(tmp_path) == Sent()


def test_records_of_a_store_that_was_moved_are_sent_from_where_it_is(tmp_path: Path, closed_port: int) -> None:
    was, here = tmp_path / "first store", tmp_path / "second"
    (was / "files").mkdir(parents=True)
    (was / "files" / "card.md").write_text("a card")
    away = f"http://127.0.0.1:{closed_port}"
    with start_run(TrackingConfig(uri=away), was, "distill") as run:
        run.log_artifacts(was / "files", "model")
    path = was / FALLBACK_FILE
    # As while the database of the store was locked.
    text = (
        path.read_text()
        .replace(away, default_uri(was))
        .replace('"location": null', f'"location": "{was.as_uri()}/mlartifacts"')
    )
    path.write_text(text)
    was.rename(here)
    assert not send_fallback(here).left
    client = connect(default_uri(here))
    sent = client.search_runs([client.get_experiment_by_name("stillhouse").experiment_id])[0].info
    assert (here / "mlartifacts" / sent.run_id / "artifacts" / "model" / "card.md").exists()
    assert not was.exists()
