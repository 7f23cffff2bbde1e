"""The table of failures in the guide names the tests that do them."""

import re
from pathlib import Path

HERE = Path(__file__).parent
TABLE = HERE.parents[2] / "docs" / "operations" / "failures.md"
OUTSIDE = HERE.parents[1] / "outside"


def test_each_row_of_the_table_is_a_test_and_each_test_a_row() -> None:
    rows = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    named = [re.search(r"`(test_\w+)` \|$", row) for row in rows if not row.startswith("| what happens")]
    others = [path for path in HERE.glob("test_*.py") if path != Path(__file__)]
    tests = [name for path in others for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.M)]
    tests += [
        name
        for path in OUTSIDE.glob("test_*.py")
        for name in re.findall(r"^def (test_\w*_is_killed_\w+)", path.read_text(encoding="utf-8"), re.M)
    ]
    assert sorted(match.group(1) for match in named if match is not None) == sorted(tests)
    assert None not in named
