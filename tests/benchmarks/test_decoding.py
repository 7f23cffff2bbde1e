import json
from pathlib import Path

import pytest

from benchmarks.decoding import main


def test_both_sides_sample_the_same_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "figures.json"
    main(["--batch-size", "3", "--max-tokens", "5", "--rounds", "1", "--json", str(out)])
    figures = json.loads(out.read_text())
    assert figures["same_tokens"] == 1.0
    assert figures["new_tokens"]["equal"] == 15
    assert 6 <= figures["new_tokens"]["unequal"] <= 30
    for name in ("equal_wall", "equal_cpu", "unequal_wall", "unequal_cpu", "reuse_wall", "reuse_cpu"):
        assert figures[name]["num_rounds"] == 1
        assert figures[name]["median"] > 0
    printed = capsys.readouterr().out
    assert "equal lengths" in printed
    assert "parked first turn" in printed
