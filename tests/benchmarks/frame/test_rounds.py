import json
from pathlib import Path

import pytest

from benchmarks.frame.rounds import publish, ratio, spread


def test_ratio_is_taken_within_each_round() -> None:
    # Twice as slow in one round: the ratio of medians would be 2, that of the rounds is 2, 2 and 8.
    figures = ratio([2.0, 4.0, 8.0], [1.0, 2.0, 1.0])
    assert (figures.median, figures.low, figures.high, figures.num_rounds) == (2.0, 2.0, 8.0, 3)


def test_rounds_of_unequal_number_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        ratio([1.0, 2.0], [1.0])


def test_figures_are_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    publish(["a line", str(spread([1.0, 3.0]))], {"ratio": 2.0}, tmp_path / "new" / "figures.json")
    assert capsys.readouterr().out == "a line\n2 (1..3, 2 rounds)\n"
    assert json.loads((tmp_path / "new" / "figures.json").read_text()) == {"ratio": 2.0}
