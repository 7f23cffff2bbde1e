import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from prefect.exceptions import Pause

from stillhouse.progress.run_state import RunState, StageState
from stillhouse.progress.snapshot import PROGRESS_FILE, Snapshot, parse_snapshot
from stillhouse.report.live import LiveData
from stillhouse.store import ArtifactStore
from stillhouse.store.records import read_trajectories
from stillhouse.store.runs import RECENT_FILE
from stillhouse.types import Trajectory
from tasks.run.live_page import LivePage


def _data() -> LiveData:
    run = RunState((StageState("prompts", "running", 0.0),))
    return LiveData("A run", Snapshot("generate", "a", "running", time.time(), run, {}), {}, [])


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + 20.0
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} was not written"
        time.sleep(0.01)


def test_the_page_is_there_at_once_and_gives_way_to_the_report(tmp_path: Path) -> None:
    report, progress = tmp_path / "reports/r/report.html", tmp_path / "reports/r" / PROGRESS_FILE
    with LivePage(report.parent, _data, list, ArtifactStore(str(tmp_path)), every_s=0.01) as page:
        _wait_for(progress)
        assert "under way" in report.read_text()
        page.stop()
        report.write_text("the report")
        time.sleep(0.05)
    assert report.read_text() == "the report"
    assert parse_snapshot(progress.read_bytes()).status == "done"


def test_the_last_trajectories_are_there_to_be_viewed_until_the_run_ends(
    tmp_path: Path, make_answered: Callable[..., Trajectory]
) -> None:
    rows = [make_answered("2 + 3?")]
    with LivePage(tmp_path / "r", _data, lambda: list(rows), ArtifactStore(str(tmp_path)), every_s=0.01):
        _wait_for(tmp_path / "r" / RECENT_FILE)
        assert list(read_trajectories(tmp_path / "r" / RECENT_FILE)) == rows
    assert not (tmp_path / "r" / RECENT_FILE).exists()


def test_a_run_that_failed_says_so_to_those_who_watch(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), LivePage(tmp_path / "r", _data, list, ArtifactStore(str(tmp_path))):
        raise RuntimeError("no money left")
    snapshot = parse_snapshot((tmp_path / "r" / PROGRESS_FILE).read_bytes())
    assert (snapshot.status, snapshot.failure) == ("failed", "no money left")


def test_a_run_that_waits_for_a_person_has_not_failed(tmp_path: Path) -> None:
    progress = tmp_path / "r" / PROGRESS_FILE
    with pytest.raises(Pause), LivePage(tmp_path / "r", _data, list, ArtifactStore(str(tmp_path))):
        raise Pause
    assert parse_snapshot(progress.read_bytes()).status == "running"


def test_a_folder_that_cannot_be_written_costs_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    with (
        caplog.at_level(logging.WARNING),
        LivePage(tmp_path / "file" / "r", _data, list, ArtifactStore(str(tmp_path)), every_s=0.01),
    ):
        time.sleep(0.3)
    assert len(caplog.messages) == 1
    assert "The run goes on" in caplog.text
