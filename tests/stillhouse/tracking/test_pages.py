from pathlib import Path

import pytest

from stillhouse.config import TrackingConfig
from stillhouse.tracking import start_run
from stillhouse.tracking.pages import Pages

SERVER = "https://mlflow.example.com"


def test_the_page_of_a_database_run_comes_with_the_command_that_serves_it(
    tracking: TrackingConfig, tmp_path: Path
) -> None:
    with start_run(tracking, tmp_path, "distill") as run:
        pass
    assert run.pages.run is not None
    assert run.pages.run.endswith(f"/runs/{run.run_id}")
    assert run.pages.ui_command is not None
    assert str(tracking.uri) in run.pages.ui_command


@pytest.mark.parametrize(
    ("pages", "run", "file"),
    [
        (
            Pages(f"{SERVER}/", "r1", "7"),
            f"{SERVER}/#/experiments/7/runs/r1",
            f"{SERVER}/#/experiments/7/runs/r1/artifacts/report/report.html",
        ),
        (Pages(SERVER, "r1", None), SERVER, None),
        (Pages(SERVER, None, "7"), None, None),
        (Pages(None, None, None), None, None),
    ],
    ids=["of a server", "of another process", "never started", "without tracking"],
)
def test_a_run_has_the_pages_that_are_known_of_it(pages: Pages, run: str | None, file: str | None) -> None:
    assert (pages.run, pages.file("report/report.html")) == (run, file)
    assert pages.ui_command is None
