import json
import shutil
from pathlib import Path

import pytest

from benchmarks.trajectory_page import Visit, lines_of, main, trajectories

pytestmark = pytest.mark.skipif(
    shutil.which("chromium") is None and shutil.which("google-chrome") is None,
    reason="no Chromium on this machine: apt-get install chromium",
)


def test_rows_are_the_same_at_each_call() -> None:
    assert list(trajectories(5)) == list(trajectories(5))


def test_the_ratio_is_ours_over_the_plain_page() -> None:
    visits = {"ours": [Visit(1.0, 0.5, 1.0, 100, 1.0)], "plain": [Visit(4.0, 1.0, 2.0, 1000, 0.5)]}
    assert [line.rpartition("ratio ")[2].split()[0] for line in lines_of(visits)] == ["0.25", "0.5", "0.5", "0.1", "2"]


@pytest.mark.slow
def test_both_pages_are_opened_and_searched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    main(["--rows", "60", "--rounds", "1", "--json", str(tmp_path / "figures.json")])
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["ours"][0]["num_nodes"] > 0
    assert figures["plain"][0]["num_nodes"] > 60 * 10
    assert "searched_s" in capsys.readouterr().out
