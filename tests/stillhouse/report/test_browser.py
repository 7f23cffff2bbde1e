"""The page in a real browser. Console messages reach Chromium's log, the page after its scripts its output."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from stillhouse.report import ReportData, SampleTrajectory, write_report

_BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(_BROWSER is None, reason="no Chromium on this machine: apt-get install chromium"),
]


def browse(page: Path, profile: Path) -> tuple[str, list[str]]:
    """The page as the browser holds it in the end, and its console's lines."""
    assert _BROWSER is not None
    done = subprocess.run(
        [
            _BROWSER,
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *(f"--user-data-dir={profile}", "--enable-logging=stderr", "--dump-dom", page.as_uri()),
        ],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.parametrize("name", ["full", "only_evaluation", "no_kept_row"])
def test_a_report_renders_without_a_word_on_the_console(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    page = write_report(tmp_path, request.getfixturevalue(name))
    shown, console = browse(page, tmp_path / "profile")
    assert console == []
    assert "Stillhouse report" in shown


def test_a_script_in_a_trajectory_does_not_run(full: ReportData, tmp_path: Path) -> None:
    attack = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    hostile = SampleTrajectory(
        messages=[{"role": "user", "content": attack}], stop_reason="answered", verified=None, stage="sft"
    )
    shown, console = browse(write_report(tmp_path, replace(full, trajectories=[hostile])), tmp_path / "profile")
    assert "<title>distill, demo.yaml</title>" in shown
    assert console == []


def test_even_an_unescaped_script_is_stopped_by_the_page_itself_and_reported(full: ReportData, tmp_path: Path) -> None:
    page = write_report(tmp_path, full)
    html = page.read_text(encoding="utf-8")
    page.write_text(html.replace("<main>", "<main><script>document.title='owned'</script>"), encoding="utf-8")
    shown, console = browse(page, tmp_path / "profile")
    assert "<title>distill, demo.yaml</title>" in shown
    assert len(console) == 1
    assert "Content Security Policy" in console[0]
