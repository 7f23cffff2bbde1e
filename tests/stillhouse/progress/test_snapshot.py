from pathlib import Path
from typing import Any

from stillhouse.progress.run_state import RunState, StageState
from stillhouse.progress.snapshot import PROGRESS_FILE, Bar, Snapshot, dump_snapshot, earlier_seconds, parse_snapshot
from stillhouse.progress.state import RolloutProgress, UsdRange


def _snapshot(**changes: Any) -> Snapshot:
    run = RunState((StageState("rollouts", "done", 8.0), StageState("sft", "running", 1.0)), "importing", 3.0, 1)
    sampled = RolloutProgress(done=3, total=4, usd=0.1, usd_projected=UsdRange(1.0, 2.0, 3.0), retries={"stall": 1})
    bars = {"rollouts": Bar(3, 4, 2.5, rollouts=sampled), "sft": Bar(1, None, 0.5, {"loss": 0.25, "doing": "saving"})}
    fields = {"flow": "distill", "subject": "a", "status": "running", "updated_at": 5.0, "run": run, "bars": bars}
    return Snapshot(**{**fields, **changes})


def test_a_snapshot_is_read_as_it_was_written() -> None:
    assert parse_snapshot(dump_snapshot(_snapshot())) == _snapshot()


def test_the_times_of_stages_come_from_the_newest_run_over_the_same_subject(tmp_path: Path) -> None:
    def write(name: str, **changes: Any) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / PROGRESS_FILE).write_bytes(dump_snapshot(_snapshot(**changes)))

    write("1-distill-a", run=RunState((StageState("rollouts", "done", 20.0), StageState("labels", "done", 2.0))))
    write("2-distill-b")
    write("3-distill-c", subject="b", run=RunState((StageState("rollouts", "done", 99.0),)))
    write("4-generate-d", run=RunState((StageState("rollouts", "done", 99.0),)))
    (tmp_path / "5-distill-e").mkdir()
    (tmp_path / "5-distill-e" / PROGRESS_FILE).write_bytes(b"half a fi")
    assert earlier_seconds(tmp_path, "distill", "a") == {"rollouts": 8.0, "labels": 2.0}
    assert earlier_seconds(tmp_path / "nowhere", "distill", "a") == {}
