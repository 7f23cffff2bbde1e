from pathlib import Path

from stillhouse.training.watching.metrics import MetricsLog, read_metrics


def nobody(metrics: dict[str, float], step: int) -> None:
    pass


def test_a_row_holds_the_means_since_the_row_before(tmp_path: Path):
    log = MetricsLog(tmp_path / "metrics.jsonl", nobody)
    log.add({"loss": 1.0, "reward": 0.5})
    log.add({"loss": 3.0})
    log.write_row(2, {"validation_loss": 9.0})
    log.add({"loss": 5.0})
    log.write_row(3)
    assert read_metrics(tmp_path / "metrics.jsonl") == [
        {"step": 2, "metrics": {"loss": 2.0, "reward": 0.5, "validation_loss": 9.0}},
        {"step": 3, "metrics": {"loss": 5.0}},
    ]
    assert log.last == {"loss": 5.0, "reward": 0.5, "validation_loss": 9.0}


def test_rows_behind_the_checkpoint_are_cut_and_its_open_steps_count_on(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path, nobody)
    log.add({"loss": 1.0})
    log.write_row(1)
    log.add({"loss": 2.0})
    state = log.state()
    log.add({"loss": 100.0})
    log.write_row(3)

    continued = MetricsLog(path, nobody)
    continued.restore(state, 2, replay=False)
    continued.add({"loss": 4.0})
    continued.write_row(3)
    assert [(row["step"], row["metrics"]["loss"]) for row in read_metrics(path)] == [(1, 1.0), (3, 3.0)]


def test_a_line_cut_short_is_left_out(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "metrics": {}}\n{"step": 2, "met')
    assert [row["step"] for row in read_metrics(path)] == [1]


def test_a_new_listener_gets_the_rows_so_far(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path, nobody)
    log.add({"loss": 1.0})
    log.write_row(1)
    heard: list[tuple[int, dict[str, float]]] = []
    continued = MetricsLog(path, lambda metrics, step: heard.append((step, metrics)))
    continued.restore(log.state(), 1, replay=True)
    assert heard == [(1, {"loss": 1.0})]
