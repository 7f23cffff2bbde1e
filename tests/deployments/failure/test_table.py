"""The table of failures in the guide names the tests that do them, and short forms that run by default."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
TABLE = TESTS.parent / "docs" / "operations" / "failures.md"


def found_in(*patterns: str) -> dict[str, bool]:
    """Return whether each test function of the files runs by default."""
    found = {}
    for path in (path for pattern in patterns for path in TESTS.glob(pattern)):
        module = ast.parse(path.read_text(encoding="utf-8"))
        marks = [ast.unparse(node) for node in module.body if isinstance(node, ast.Assign)]
        is_left_out = any(re.search(r"^pytestmark = .*\.(slow|gpu|outside)\b", mark) for mark in marks)
        for node in module.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                is_slow = "pytest.mark.slow" in map(ast.unparse, node.decorator_list)
                found[node.name] = not (is_left_out or is_slow)
    return found


def test_each_row_of_the_table_is_a_test_and_each_test_a_row_and_short_forms_run_by_default() -> None:
    lines = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if re.search(r"`test_\w+` \|$", line)]
    rows = [re.findall(r"`(test_\w+)`", line) for line in lines]
    tests = found_in("**/test_*.py")
    outside = [name for name in found_in("outside/test_*.py") if "_is_killed_" in name]
    here = [name for name, is_default in found_in("deployments/failure/test_*.py").items() if not is_default]
    named = [row[0] for row in rows]
    assert len(set(named)) == len(named)
    assert {*here, *outside} <= set(named) <= set(tests)
    by_default = {name for name, is_default in tests.items() if is_default}
    assert not {name for row in rows for name in row[1:]} - by_default
    # What an idle worker does is Prefect's.
    assert [row[0] for row in rows if len(row) == 1] == [
        "test_an_idle_worker_that_is_told_to_end_leaves_what_comes_to_the_next_one"
    ]
