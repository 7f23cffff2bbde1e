import json
from pathlib import Path

import pytest

from benchmarks.ledger import main


def test_every_figure_is_measured_and_none_is_out_of_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    main(["--sequences", "8", "--rounds", "1", "--json", "figures.json"])
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["k0"]["bytes_a_token"] < 8
    assert figures["k20"]["bytes_a_token"] < 130
    assert figures["k100"]["size_over_raw"] < 1
    # Of log-probabilities of -8 to -1, rounded to 2^-11 of their size.
    assert 0 < figures["k20"]["half_precision_error"] < 1e-3 * figures["k20"]["kl"] + 1e-4
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"]
