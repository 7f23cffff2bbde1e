import json
from pathlib import Path

import pytest

from stillhouse.errors import StoreError
from stillhouse.training.monitoring.metrics import MetricsLog, StepRows
from tests.stillhouse.training.trainings import read_metrics


def unheard(metrics: dict[str, float], step: int) -> None:
    pass


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


@pytest.fixture
def log(path: Path) -> MetricsLog:
    return MetricsLog(path, unheard)


def test_a_row_holds_the_means_since_the_row_before(log: MetricsLog, path: Path):
    log.add({"loss": 1.0, "reward": 0.5})
    log.add({"loss": 3.0})
    log.write_row(2, {"validation_loss": 9.0})
    log.add({"loss": 5.0})
    log.write_row(3)
    assert read_metrics(path) == [
        {"step": 2, "metrics": {"loss": 2.0, "reward": 0.5, "validation_loss": 9.0}},
        {"step": 3, "metrics": {"loss": 5.0}},
    ]
    assert log.last == {"loss": 5.0, "reward": 0.5, "validation_loss": 9.0}


def test_a_ratio_is_that_of_sums_and_that_of_nothing_is_left_out(log: MetricsLog):
    log.add({}, {"tokens_per_s": (100.0, 1.0), "share": (0.0, 0.0)})
    log.add({}, {"tokens_per_s": (100.0, 4.0), "share": (0.0, 0.0)})
    assert log.current == {"tokens_per_s": 40.0}
    log.write_row(2)
    assert log.last == {"tokens_per_s": 40.0}
    log.add({"loss": 1.0})
    assert log.current == {"tokens_per_s": 40.0, "loss": 1.0}


def test_a_maximum_is_the_largest_since_the_row_before(log: MetricsLog, path: Path):
    log.add({}, maxima={"worst": 3.0})
    state = json.loads(json.dumps(log.state()))
    log = MetricsLog(path, unheard)
    log.restore(state, 1, replay=False)
    log.add({}, maxima={"worst": 2.0})
    assert log.current == {"worst": 3.0}
    log.write_row(2)
    log.add({}, maxima={"worst": 1.0})
    log.write_row(3)
    assert [row["metrics"]["worst"] for row in read_metrics(path)] == [3.0, 1.0]


def test_rows_behind_the_checkpoint_are_cut_and_its_open_steps_count_on(log: MetricsLog, path: Path):
    log.add({"loss": 1.0})
    log.write_row(1)
    log.add({"loss": 2.0}, {"share": (1.0, 2.0)})
    state = log.state()
    log.add({"loss": 100.0})
    log.write_row(3)
    log = MetricsLog(path, unheard)
    log.restore(json.loads(json.dumps(state)), 2, replay=False)
    log.add({"loss": 4.0}, {"share": (2.0, 2.0)})
    log.write_row(3)
    assert [(row["step"], row["metrics"]["loss"]) for row in read_metrics(path)] == [(1, 1.0), (3, 3.0)]
    assert log.last["share"] == 0.75


def test_a_process_that_does_not_write_has_the_same_values():
    log = MetricsLog(None, unheard)
    log.restore({"window": {"loss": [1.0, 1.0]}, "maxima": {}, "last": {"lr": 0.5}}, 1, replay=True)
    log.add({"loss": 3.0})
    log.write_row(2)
    assert log.last == {"loss": 2.0, "lr": 0.5}
    assert log.state() == {"window": {}, "maxima": {}, "last": log.last}


def test_without_a_checkpoint_rows_of_an_earlier_attempt_are_gone(log: MetricsLog, path: Path):
    log.write_row(0, {"validation_loss": 1.0})
    MetricsLog(path, unheard).restore(None, 0, replay=False)
    assert read_metrics(path) == []


def test_a_disk_that_is_full_is_an_error_that_names_the_file(tmp_path: Path):
    log = MetricsLog(tmp_path / "gone" / "metrics.jsonl", unheard)
    with pytest.raises(StoreError, match=r"gone/metrics\.jsonl"):
        log.write_row(1, {"loss": 1.0})


def test_a_new_listener_gets_the_rows_so_far(log: MetricsLog, path: Path):
    log.add({"loss": 1.0})
    log.write_row(1)
    replayed: list[tuple[int, dict[str, float]]] = []
    listening = MetricsLog(path, lambda metrics, step: replayed.append((step, metrics)))
    listening.restore(log.state(), 1, replay=True)
    assert replayed == [(1, {"loss": 1.0})]


def test_a_damaged_line_is_an_error_and_one_cut_short_at_the_end_is_left_out(path: Path) -> None:
    rows = StepRows(path)
    rows.append([{"step": 1}, {"step": 2}])
    with path.open("a") as file:
        file.write('{"step": 3')
    assert read_metrics(path) == [{"step": 1}, {"step": 2}]
    assert rows.go_back(1) == [{"step": 1}]
    path.write_text('garbage\n{"step": 1}\n')
    with pytest.raises(StoreError, match=r"metrics\.jsonl.*JSON"):
        rows.go_back(1)
