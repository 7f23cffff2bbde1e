import ast

import pytest

from stillhouse.embedded.solve import _evaluate, _run_call


@pytest.mark.parametrize(
    ("expression", "value"), [("412 + 77", 489), ("489 - 5 * 12", 429), ("-37 + 5", -32), ("2 * -3", -6), ("7", 7)]
)
def test_expressions_of_the_task_have_their_value(expression: str, value: int):
    assert _evaluate(ast.parse(expression, mode="eval").body) == value


@pytest.mark.parametrize("expression", ["2 ** 9", "1 / 2", "len", "__import__('os')", "1.5 + 1", "'a' * 3"])
def test_anything_else_is_refused(expression: str):
    with pytest.raises(ValueError, match="not an expression"):
        _evaluate(ast.parse(expression, mode="eval").body)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "3", '{"name": "calculator"}', '{"name": "calculator", "arguments": "1 + 1"}'),
        *('{"arguments": {"expression": "1"}}', '{"name": "calculator", "arguments": {"expression": "1 +"}}'),
        '{"name": "calculator", "arguments": {"expression": 3}}',
        '{"name": "browse", "arguments": {"expression": "1 + 1"}}',
    ],
)
def test_a_broken_call_is_no_call(text: str):
    assert _run_call(text) is None


def test_a_call_is_followed_by_its_result():
    turn = _run_call('{"name": "calculator", "arguments": {"expression": "412 + 77"}}')
    assert turn is not None
    assert (turn[0]["role"], turn[1]) == ("assistant", {"role": "tool", "content": "489"})
