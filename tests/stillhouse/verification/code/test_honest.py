import tomllib
from pathlib import Path
from typing import Final

import pytest

HONEST: Final[dict[str, dict[str, str]]] = tomllib.loads(
    Path(__file__).with_name("honest_answers.toml").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", HONEST)
def test_a_right_answer_is_verified(find, name: str) -> None:
    answer = f"```python\n{HONEST[name]['code']}```"
    assert find("python", answer, None, test_cases=HONEST[name]["tests"])[:2] == (True, None)


@pytest.mark.parametrize(
    ("tests", "verified", "note"),
    [
        ("class B(A): pass", None, "the tests derive a class from one of the answer's"),
        ("m = M([1])\nm.n\nassert m == [1]", None, "an object of the answer's own class"),
        ("import types\nassert A.f(types) == 1", None, "the tests give a module"),
        ("a = A()\nassert a.f(2) == 3", False, "AssertionError"),
    ],
)
def test_tests_that_cannot_be_put_from_outside_leave_an_answer_unverified(
    find, tests: str, verified: bool | None, note: str
) -> None:
    code = "class A:\n    def f(self, x=0): return x\nclass M(list):\n    n = 1"
    result = find("python", f"```python\n{code}\n```", None, test_cases=tests)
    assert result.verified is verified
    assert note in str(result.note)
