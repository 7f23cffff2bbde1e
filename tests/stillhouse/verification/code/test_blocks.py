from typing import Any

import pytest

from stillhouse.verification.code.blocks import python_code

TWICE = "def twice(n):\n    return 2 * n"
WRONG = "def twice(n):\n    return n"
HELPED = "def twice(n):\n    return double(n)"
DOUBLE = "def double(n):\n    return 2 * n"
SCRIPT = "n = int(input())\nprint(2 * n)"
ASSERTS = {"test_cases": ["assert twice(2) == 4", "assert twice(0) == 0"]}
RUNS = {"test_cases": [{"input": "2\n", "output": "4\n"}]}
CALLS = {"test_cases": {"inputs": [[2]], "outputs": [4]}, "fn_name": "twice"}


def fenced(*blocks: str) -> str:
    """An answer of blocks; those that start with `!` have a fence without a language."""
    return "\n".join(
        f"Text.\n```{'' if block.startswith('!') else 'python'}\n{block.removeprefix('!')}\n```" for block in blocks
    )


@pytest.mark.parametrize(
    ("blocks", "tests", "right"),
    [
        # What shows the call, or what it prints, is no solution.
        ([TWICE, "print(twice(2))"], ASSERTS, True),
        ([TWICE, "print(twice(2))"], CALLS, True),
        ([TWICE, "from solution import twice\nassert twice(2) == 5"], ASSERTS, True),
        ([TWICE, "def test_twice():\n    assert twice(2) == 5"], ASSERTS, True),
        ([TWICE, "import no_such_module\n\ndef test_twice():\n    assert twice(2) == 5"], ASSERTS, True),
        ([TWICE, "!4"], ASSERTS, True),
        ([TWICE, "!n: four"], {"test_cases": "n = 2\nassert twice(n) == 4"}, True),
        ([TWICE, "!Output: 4\n\nas twice of 2 is 4"], ASSERTS, True),
        ([TWICE, "!>>> twice(2)\n4"], ASSERTS, True),
        ([TWICE, ">>> twice(2)\n4"], ASSERTS, True),
        ([TWICE, "!$ python solution.py\n4"], ASSERTS, True),
        (["print(twice(2))", TWICE], ASSERTS, True),
        ([TWICE + "\nprint(twice(int(input())))"], CALLS, False),
        # The last version counts, also where it cannot be read.
        ([WRONG, TWICE], ASSERTS, True),
        ([TWICE, WRONG], ASSERTS, False),
        ([TWICE, "def twice(n):\n    return 2 *"], ASSERTS, False),
        ([TWICE, WRONG, "print(twice(2))"], ASSERTS, False),
        # Blocks that belong together.
        ([DOUBLE, HELPED], ASSERTS, True),
        ([HELPED, DOUBLE], ASSERTS, True),
        (["import operator", "def twice(n):\n    return operator.add(n, n)"], ASSERTS, True),
        ([DOUBLE, "class Solution:\n    def twice(self, n):\n        return double(n)"], CALLS, True),
        (["class D:\n    def of(self, n): return 2 * n", "def twice(n):\n    return D().of(n)"], ASSERTS, True),
        ([DOUBLE + "\n" + HELPED.replace("double(n)", "double(n) + 1"), HELPED], ASSERTS, True),
        ([DOUBLE, TWICE], {"test_cases": "assert twice(2) == double(2) == 4"}, True),
        (["class Solution:\n    def twice(self, n: List[int]) -> Optional[int]:\n        return 2 * n"], CALLS, True),
        (["import sys\nsys.exit(0)", WRONG], ASSERTS, False),
        (["import sys\n" + WRONG + "\nsys.exit(0)"], ASSERTS, False),
        # Programs.
        ([SCRIPT, "!2\n4"], RUNS, True),
        ([SCRIPT, "!Input: 2\nOutput: 4"], RUNS, True),
        ([SCRIPT, "assert double(2) == 4"], RUNS, True),
        (["def solve(n):\n    return 2 * n", "print(solve(int(input())))"], RUNS, True),
        (["def main():\n    print(2 * int(input()))", "if __name__ == '__main__':\n    main()"], RUNS, True),
        (["def twice(n):\n    return 2 * n\nprint(twice(int(input())))", "print(twice(21))"], RUNS, True),
        (["print(0)", "print(4)"], RUNS, True),
        ([SCRIPT, SCRIPT.replace("2 *", "3 *")], RUNS, False),
        ([SCRIPT, SCRIPT + ")"], RUNS, False),
    ],
)  # fmt: skip
def test_what_is_run_is_the_solution_and_all_it_needs(
    find, blocks: list[str], tests: dict[str, Any], right: bool
) -> None:
    assert find("python", fenced(*blocks), None, **tests).verified is right


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (TWICE, TWICE),
        ("Twice two is four.", None),
        ("```text\n4\n```", None),
        (">>> 2 * 2\n4", None),
        ("~~~py\nx = 1\n~~~", "x = 1\n"),
        ("  ```python\n  x = 1\n  ```", "x = 1\n"),
        ("```python\nx = (", "x = ("),
        ("x = 1\n```", "x = 1\n"),
        ("x = 1\n```\nThis defines x.", "x = 1\n"),
        ("```python\nx = 1\n```\n```javascript\nlet x = 2\n```", "x = 1\n"),
        ("```python\n" + "(" * 5000 + "\n```", "(" * 5000 + "\n"),
    ],
)
def test_fences_and_bare_code_are_read(answer: str, code: str | None) -> None:
    assert python_code(answer, ["x"]) == code
