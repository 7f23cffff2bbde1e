from pathlib import Path

import pytest

from stillhouse.errors import StoreError
from stillhouse.training.monitoring.step_rows import StepRows


def test_a_damaged_line_is_told_of_and_one_cut_short_at_the_end_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rows = StepRows(path)
    rows.append([{"step": 1}, {"step": 2}])
    with path.open("a") as file:
        file.write('{"step": 3')
    assert rows.go_back(1) == [{"step": 1}]
    path.write_text('garbage\n{"step": 1}\n')
    with pytest.raises(StoreError, match=r"metrics\.jsonl: a line is no JSON: .*delete it"):
        rows.go_back(1)
