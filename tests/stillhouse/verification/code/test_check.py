import json
from typing import Any

import pytest

from stillhouse.verification.code.compare import same_output

ADD = "Sure:\n```python\ndef add(a, b):\n    return a + b\n```\nUse it as `add(1, 2)`."
SUM = "```python\nprint(sum(map(int, input().split())))\n```"
SOLUTION = "```python\nclass Solution:\n    def add(self, a, b):\n        return a + b\n```"
CHECK = "def check(candidate):\n    assert candidate(1, 2) == 3\n"
CASE = """
import unittest
class TestAdd(unittest.TestCase):
    def test_sum(self):
        self.assertEqual(add(1, 2), 3)
"""


@pytest.mark.parametrize(
    ("answer", "test_cases", "more"),
    [
        (ADD, ["assert add(1, 2) == 3", "assert add(0, 0) == 0"], {}),
        (ADD, "assert add(1, 2) == 3", {}),
        (ADD, "from solution import add\n\ndef test_sum():\n    assert add(1, 2) == 3\n", {}),
        (ADD, [{"assert_code": "from solution import add\ndef test_1():\n    assert add(1, 2) == 3"}], {}),
        (ADD, CHECK, {"entry_point": "add"}),
        (ADD, CASE, {}),
        (ADD, {"fn_name": "add", "inputs": [[1, 2], [0.1, 0.2]], "outputs": [3, [0.3]]}, {}),
        (SOLUTION, {"fn_name": "add", "inputs": [[1, 2]], "outputs": [3]}, {}),
        (ADD, [{"fn_name": "add", "input": [1, 2], "output": 3}], {}),
        (ADD, [{"input": "1\n2", "output": "3", "testtype": "functional"}], {"func_name": "add"}),
        (ADD, [{"input": [1, 2], "output": 3}, {"input": "[1]\n[2]", "output": [1, 2]}], {"function": "add"}),
        (ADD, [{"input": ["a", "b"], "output": "ab"}], {"entry_point": "add"}),
        (ADD, [{"input": "1\n2", "output": "3", "metadata": {"func_name": "add"}}], {}),
        (ADD, {"inputs": [[1, 2]], "outputs": [3]}, {"fn_name": "add"}),
        (ADD, {"inputs": ["1\n2", '"a"\n"b"'], "outputs": ["3", '"ab"'], "fn_name": "add"}, {}),
        ("def same(s):\n    return s", [{"input": "a b", "output": "a b"}], {"function_name": "same"}),
        (SUM, [{"input": "1 2", "output": "3", "type": "stdin_stdout"}], {"function": "add"}),
        (SUM, [{"input": "1 2", "output": "3", "testtype": "stdin"}], {"func_name": "add"}),
        (SUM, [{"input": "1 2\n", "output": "3\n"}, {"input": "4 5", "output": "9"}], {}),
        (SUM, [{"stdin": "1 2", "expected_stdout": "3"}], {}),
        (SUM, {"inputs": ["1 2\n", ["4 5", ""]], "outputs": ["3", ["9"]]}, {}),
        ("def add(a, b):\n    return a + b", ["assert add(1, 2) == 3"], {}),
    ],
)
def test_right_code_passes_tests_of_every_form(find, answer: str, test_cases: Any, more: dict[str, object]) -> None:
    assert find("python", answer, None, test_cases=test_cases, **more)[:2] == (True, None)
    assert find("python", answer, None, test_cases=json.dumps(test_cases), **more)[:2] == (True, None)


@pytest.mark.parametrize(
    ("answer", "test_cases", "more", "note"),
    [
        (
            ADD,
            ["assert add(1, 2) == 3", "assert add(1, 2) == 4"],
            {},
            "tests.py, line 2: AssertionError: assert add(1, 2) == 4",
        ),
        (ADD, "def test_sum():\n    assert add(1, 2) == 4", {}, "tests.py, line 2: AssertionError"),
        (ADD, CHECK.replace("3", "4"), {"entry_point": "add"}, "tests.py, line 2: AssertionError"),
        (ADD, CHECK, {"entry_point": "plus"}, "the answer defines no function plus"),
        (ADD, CASE.replace("3", "4"), {}, "AssertionError: 3 != 4"),
        (ADD, "from solution import plus", {}, "ImportError: cannot import name 'plus'"),
        (ADD, {"fn_name": "add", "inputs": [[1, 2], [2, 2]], "outputs": [3, 5]}, {}, "add(2, 2) gave 4, expected 5"),
        (ADD, [{"input": [1, 2], "output": 4}], {"function": "add"}, "add(1, 2) gave 3, expected 4"),
        (
            "```python\ndef f(x): raise SystemExit(x)\n```",
            {"fn_name": "f", "inputs": [[0]], "outputs": [0]},
            {},
            "solution.py, line 1: SystemExit: 0",
        ),
        (
            SUM,
            [{"input": "1 2", "output": "3"}, {"input": "4 5", "output": "8"}],
            {},
            "test 2 of 2: printed '9\\n', exp",
        ),
        (SUM, [{"input": "", "output": "3"}], {}, "solution.py, line 1: EOFError"),
        ("```python\ndef add(a, b)\n```", ["assert add(1, 2) == 3"], {}, "SyntaxError"),
        ("```python\nimport nothing_such\n```", ["assert True"], {}, "No module named 'nothing_such'"),
        ("```python\nimport sys\nsys.exit(0)\n```", ["assert False"], {}, "SystemExit: 0"),
        ("```python\nimport os\nos._exit(0)\n```", ["assert False"], {}, "the code ended its process with code 0"),
        ("```python\nimport sys\nsys.exit(1)\n```", [{"input": "", "output": ""}], {}, "SystemExit: 1"),
        ("I would rather not.", ["assert True"], {}, "the answer holds no Python"),
    ],
)
def test_wrong_code_is_told_where_it_fails(
    find, answer: str, test_cases: Any, more: dict[str, object], note: str
) -> None:
    result = find("python", answer, None, test_cases=test_cases, **more)
    assert result.verified is False
    assert note in str(result.note)


@pytest.mark.parametrize(
    ("test_cases", "more", "note"),
    [
        ("assert (", {}, "the tests are no Python"),
        ("import nothing_such", {}, "the tests need a module that is not installed: nothing_such"),
        (CHECK, {}, "the tests use nothing of the answer"),
        ([{"input": [1, 2], "output": 3}], {"function": "def add(a, b)"}, "by its name alone"),
        ("def test_sum(fixture):\n    pass", {}, "test_sum takes arguments (fixture)"),
        ([5], {}, "expected each of test_cases to be an assert or an object with input and output; saw int"),
        (5, {}, "expected test_cases to be code, a list of assert statements"),
        ({"inputs": [1], "outputs": []}, {}, "lists of one length"),
        (["assert add(1, 2) == 3"], {"time_limit_s": "long"}, "metadata.time_limit_s to be a number above 0"),
    ],
)
def test_tests_that_cannot_be_run_leave_the_answer_unverified(
    find, test_cases: Any, more: dict[str, object], note: str
) -> None:
    result = find("python", ADD, None, test_cases=test_cases, **more)
    assert result.verified is None
    assert note in str(result.note)


def test_expected_answer_holds_the_tests_where_there_are_no_others(find) -> None:
    assert find("python", ADD, "assert add(1, 2) == 3").verified is True
    assert find("python", ADD, "def add(): pass", test_cases=["assert add(1, 2) == 4"]).verified is False


def test_a_verdict_names_the_code_that_was_run(find) -> None:
    imported = ADD.replace("def", "import math\n\ndef")
    assert find("python", imported, "assert add(1, 2) == 3").compared == "def add(a, b):"
    assert find("python", SUM, [], test_cases=[{"input": "1", "output": "2"}]).compared == SUM[10:-4]


@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("import sys\ndata = sys.stdin.buffer.read()\nprint(int(data) * 2)", "42"),
        ("import os\nprint(int(os.read(0, 99)) * 2)", "42"),
        ("if __name__ == '__main__':\n    print(int(input()) * 2)", "42"),
        ("import threading\nthreading.Thread(target=lambda: print(int(input()) * 2)).start()", "42"),
        ("import atexit\natexit.register(lambda: print(int(input()) * 2))", "42"),
        ("import sys\nsys.stdout.buffer.write(b'42')\nsys.exit()", "42\n"),
        ("import sys, io\nout = sys.stdout = io.StringIO()\nprint(42)\nsys.__stdout__.write(out.getvalue())", "42"),
        ("print('42.0000001  x ')\nprint()", "42.0 x"),
        ("print('\u00e9')", "\u00e9"),
    ],
)
def test_scripts_read_and_print_as_they_please(find, code: str, output: str) -> None:
    result = find("python", f"```python\n{code}\n```", None, test_cases=[{"input": "21\n", "output": output}])
    assert result[:2] == (True, None)


@pytest.mark.parametrize(
    ("seen", "expected", "same"),
    [
        ("1 2\n", "1 2", True),
        ("1  2 \n\n", "1 2", True),
        ("0.30000000000000004", "0.3", True),
        ("YES", "Yes", False),
        ("1\n2", "1 2", False),
        ("10", "1e1", False),
        ("1000001", "1000000", False),
        ("", "0", False),
    ],
)
def test_outputs_are_compared_line_by_line(seen: str, expected: str, same: bool) -> None:
    assert same_output(seen, expected) is same


def test_sets_are_printed_in_one_order(find) -> None:
    answer = "```python\nprint({'a', 'b', 'c', 'd', 'e'})\n```"
    notes = {find("python", answer, None, test_cases=[{"input": "", "output": "?"}]).note for _ in range(3)}
    assert len(notes) == 1
