import json
from pathlib import Path

import pytest

from benchmarks.science.__main__ import main
from benchmarks.science.experiments import EXPERIMENTS


@pytest.mark.slow
def test_every_experiment_runs_and_what_has_run_is_kept(tmp_path: Path) -> None:
    out, page = tmp_path / "science.json", tmp_path / "science.html"
    arguments = ["--quick", "--processes", "1", "--folder", str(tmp_path), "--json", str(out), "--page", str(page)]
    main([*arguments, "--seeds", "0"])
    first = json.loads(out.read_text())
    assert list(first) == list(EXPERIMENTS)
    trainings = tmp_path / "quick" / "trainings"
    written = {path: path.stat().st_mtime_ns for path in trainings.glob("*/course.json")}
    main([*arguments, "--seeds", "0", "--experiments", "e1", "e7"])
    assert json.loads(out.read_text())["e7"] == first["e7"]
    assert {path: path.stat().st_mtime_ns for path in trainings.glob("*/course.json")} == written
    assert "no figure" in page.read_text()
