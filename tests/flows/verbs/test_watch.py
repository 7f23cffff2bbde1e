"""`stillhouse watch`: a run as another terminal sees it."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import pytest

from stillhouse.progress.run_state import RunState, StageState
from stillhouse.progress.snapshot import PROGRESS_FILE, Bar, Snapshot, dump_snapshot
from stillhouse.store.records import write_jsonl
from stillhouse.store.runs import RECENT_FILE, RunRecord, write_run_record
from stillhouse.types import Message, StopReason, Trajectory, Turn

Shell = Callable[..., tuple[int, str]]
STAGES = (StageState("prompts", "done", 0.1), StageState("sft", "running", 3.0))


def _write_run(folder: Path, status: Literal["running", "done", "failed"], failure: str | None = None) -> None:
    write_run_record(folder, RunRecord("distill", "2026-01-01", None, None, "lucky-quokka", {}))
    bars = {"sft": Bar(120, 600, 3.0, {"loss": 0.8123})}
    snapshot = Snapshot("distill", "a", status, time.time(), RunState(STAGES), bars, failure)
    (folder / PROGRESS_FILE).write_bytes(dump_snapshot(snapshot))


def _answered(question: str) -> Trajectory:
    messages: list[Message] = [{"role": "user", "content": question}, {"role": "assistant", "content": "5"}]
    turn = Turn("stop", {"prompt_tokens": 9, "completion_tokens": 4}, 0.1, "m")
    return Trajectory(question, question, 0, messages, [], [turn], StopReason.ANSWERED, "m")


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
    assert (code, "No run has begun in this store" in output) == (2, True), output


def test_the_page_of_a_run_under_way_is_written_anew_until_it_ends(shell: Shell, tmp_path: Path) -> None:
    folder, page = tmp_path / "runs/reports/1-distill-a", tmp_path / "page.html"
    _write_run(folder, "running")
    write_jsonl(folder / RECENT_FILE, [_answered("2 + 3?")])

    def end() -> None:
        while not page.exists():
            time.sleep(0.05)
        assert 'data-reload="5"' in page.read_text()
        write_jsonl(folder / RECENT_FILE, [_answered("2 + 3?"), _answered("1 + 4?")])
        _write_run(folder, "done")

    with ThreadPoolExecutor() as pool:
        ended = pool.submit(end)
        code, output = shell("view", "--follow", "--no-open", "-o", str(page))
        ended.result()
    assert (code, "1 trajectories" in output) == (0, True), output
    assert "data-reload" not in page.read_text().partition("<script>")[0]
