"""`stillhouse watch`: a run as another terminal sees it."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from stillhouse.progress.run_state import RunState, StageState
from stillhouse.progress.snapshot import PROGRESS_FILE, Bar, Snapshot, dump_snapshot
from stillhouse.store.runs import RunRecord, write_run_record

Shell = Callable[..., tuple[int, str]]
STAGES = (StageState("prompts", "done", 0.1), StageState("sft", "running", 3.0))


def _write_run(folder: Path, status: Literal["running", "done", "failed"], failure: str | None = None) -> None:
    write_run_record(folder, RunRecord("distill", "2026-01-01", None, None, "lucky-quokka", {}))
    bars = {"sft": Bar(120, 600, 3.0, {"loss": 0.8123})}
    snapshot = Snapshot("distill", "a", status, time.time(), RunState(STAGES), bars, failure)
    (folder / PROGRESS_FILE).write_bytes(dump_snapshot(snapshot))


@pytest.mark.parametrize(
    ("status", "failure", "code", "said"),
    [
        ("done", None, 0, "1-distill-a: done"),
        ("failed", "no money left", 1, "error: the run has failed: no money left"),
    ],
)
def test_a_run_that_has_ended_is_shown_as_it_ended(
    shell: Shell,
    tmp_path: Path,
    status: Literal["done", "failed"],
    failure: str | None,
    code: int,
    said: str,
) -> None:
    _write_run(tmp_path / "runs/reports/1-distill-a", status, failure)
    ended, output = shell("watch", "lucky-quokka")
    assert ended == code, output
    assert "120/600  loss 0.812" in output
    assert said in output


def test_without_a_run_there_is_nothing_to_watch(shell: Shell) -> None:
    code, output = shell("watch")
    assert (code, "No run has begun in this store" in output) == (1, True), output
