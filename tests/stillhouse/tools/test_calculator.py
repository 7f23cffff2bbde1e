import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.embedded.shop import CALCULATOR_SCHEMA
from stillhouse.tools.calculator import calculator, evaluate


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("489 - 5 * 12", "429"),
        ("10 / 2", "5"),
        ("7 / 2", "3.5"),
        ("7 // 2", "3"),
        ("7 % 4", "3"),
        ("2 ** 10", "1024"),
        ("-(2 + 3) * 4", "-20"),
        ("0.1 + 0.2", "0.3"),
        ("  1\t+ 1 ", "2"),
        ("2 ** 0.5", "1.4142135623731"),
    ],
)
def test_values(expression: str, value: str) -> None:
    assert evaluate(expression) == value


@given(st.integers(-99_999, 99_999), st.sampled_from("+-*"), st.integers(0, 999))
def test_whole_numbers_agree_with_python(left: int, sign: str, right: int) -> None:
    assert evaluate(f"{left} {sign} {right}") == str(eval(f"{left} {sign} {right}"))


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("9 ** 9 ** 9", "too large"),
        ("10.0 ** 400", "too large"),
        ("1e308 * 10", "too large"),
        ("1 / 0", "by zero"),
        ("0 ** -1", "by zero"),
        ("__import__('os').system('true')", "not supported"),
        ("x + 1", "not supported"),
        ("True + 1", "not a number"),
        ("2 ^ 3", r"write \*\*"),
        ("(-8) ** 0.5", "not a real number"),
        ("1 +", "arithmetic"),
        ("(" * 400 + "1" + ")" * 400, "arithmetic"),
        ("1+" * 600 + "1", "1000"),
    ],
)
def test_what_is_refused_is_refused_at_once_with_a_reason(expression: str, reason: str) -> None:
    started = time.process_time()
    with pytest.raises(ValueError, match=reason):
        evaluate(expression)
    assert time.process_time() - started < 0.5


def test_schema_is_to_the_byte_the_one_the_embedded_models_were_trained_on() -> None:
    assert json.dumps(calculator.schema) == json.dumps(CALCULATOR_SCHEMA)
