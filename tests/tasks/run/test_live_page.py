import logging
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from stillhouse.progress.run_state import RunState, StageState
from stillhouse.report.live import LiveData
from stillhouse.store import ArtifactStore
from stillhouse.store.records import read_trajectories
from stillhouse.store.runs import RECENT_FILE
from stillhouse.types import Trajectory
from tasks.run.live_page import LivePage


def _data() -> LiveData:
    run = RunState((StageState("prompts", "running", 0.0),))
    return LiveData("A run", datetime.now(UTC), run, {}, {}, [])


def _wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60.0
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_page_is_there_at_once_and_gives_way_to_the_report(tmp_path: Path) -> None:
    report = tmp_path / "reports/r/report.html"
    with LivePage(report.parent, _data, list, ArtifactStore(str(tmp_path)), every_s=0.01) as page:
        _wait_until(report.exists)
        assert "under way" in report.read_text()
        page.stop()
        report.write_text("the report")
        time.sleep(0.05)
    assert report.read_text() == "the report"


def test_the_last_trajectories_are_there_to_be_viewed_and_new_until_the_run_ends(
    tmp_path: Path, make_answered: Callable[..., Trajectory]
) -> None:
    rows, recent = [make_answered("2 + 3?")], tmp_path / "r" / RECENT_FILE
    with LivePage(tmp_path / "r", _data, lambda: list(rows), ArtifactStore(str(tmp_path)), every_s=0.01):
        _wait_until(recent.exists)
        assert list(read_trajectories(recent)) == rows
        os.utime(recent, (0, 0))
        _wait_until(lambda: recent.stat().st_mtime > 0)
    assert not recent.exists()


def test_a_folder_that_cannot_be_written_costs_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    with (
        caplog.at_level(logging.WARNING),
        LivePage(tmp_path / "file" / "r", _data, list, ArtifactStore(str(tmp_path)), every_s=0.01),
    ):
        _wait_until(lambda: bool(caplog.messages))
        time.sleep(0.1)
    assert len(caplog.messages) == 1
    assert "The run goes on" in caplog.text
