import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

SCHEMA = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer", "maximum": 5}}}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("answer", "expected", "schema", "verdict"),
    [
        ('{"a": 5}', None, SCHEMA, True),
        ('{"a": 5.0}', None, json.dumps(SCHEMA), True),
        ('{"a": 6}', None, SCHEMA, False),
        ('{"a": 1e999999}', None, SCHEMA, False),
        ('{"a": 5}', '{"a": 5}', SCHEMA, True),
        ('{"a": 4}', '{"a": 5}', SCHEMA, False),
        ('{"a": 5}', None, {"type": "nothing"}, None),
        ('{"a": 5}', None, "{", None),
        ('{"a": 5}', None, {"$ref": "http://127.0.0.1:9/schema"}, None),
    ],
)
def test_schemas_are_checked(find, answer: str, expected: str | None, schema: Any, verdict: bool | None) -> None:
    assert find("json", answer, expected, answer_schema=schema).verified is verdict


@given(VALUES)
def test_a_value_equals_itself_however_it_is_written(find, value) -> None:
    assert find("json", json.dumps(value, sort_keys=True, indent=2), json.dumps(value)).verified is True
    assert find("json", json.dumps([value, 0]), json.dumps([value, 1])).verified is False
