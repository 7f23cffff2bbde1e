import json
from pathlib import Path

import pytest

from benchmarks.journal import main


def test_every_figure_is_measured_and_none_is_out_of_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["--rollouts", "300", "--few", "1000", "--many", "20000", "--rounds", "1", "--json", "figures.json"])
    figures = json.loads((tmp_path / "figures.json").read_text())
    # Ours does all that bare does and wakes those who wait; by how much, only a quiet machine can tell.
    assert 0.5 < figures["rollout_over_bare"]["median"] < 30
    assert figures["look_up_many_over_few"]["median"] < 10
    assert figures["open_s"] < 2
    assert "20,000 rows over 1,000" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"]
