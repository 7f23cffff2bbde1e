import json
from dataclasses import dataclass

import orjson
import pytest

from stillhouse.store import exact_json

BIG = 98765432109876543210


@dataclass
class Row:
    number: int


@pytest.mark.parametrize(
    "value",
    [
        BIG,
        -BIG,
        1 << 64,
        -(1 << 63) - 1,
        10**400,
        [BIG, 1.5, "a"],
        {"a": {"b": [BIG]}},
        "no number 98765432109876543210",
    ],
)
def test_whole_numbers_of_any_size_come_back(value: object) -> None:
    assert exact_json.loads(exact_json.dumps(value)) == value
    assert exact_json.loads(exact_json.dumps(value).decode()) == value


def test_what_is_written_is_what_orjson_writes_but_for_long_numbers() -> None:
    rows = [Row(1), {"b": 0.00012345678901234567, "a": "\u00e9"}]
    assert exact_json.dumps(rows, option=orjson.OPT_SORT_KEYS) == orjson.dumps(rows, option=orjson.OPT_SORT_KEYS)
    assert exact_json.dumps([Row(BIG), {1, 2}], default=sorted) == b'[{"number":%d},[1,2]]' % BIG


@pytest.mark.parametrize(
    "text", [f"[NaN, {BIG}]", f'["\\ud800", {BIG}]', f"{BIG} x", f"0{BIG}", "1" * 5000, f'["\ud800", {BIG}]']
)
def test_what_orjson_refuses_is_refused_beside_a_long_number(text: str) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        exact_json.loads(text)


def test_floats_and_escapes_are_as_orjson_reads_them() -> None:
    text = '["\\u12345678901234567890123", 0.00012345678901234567, 98765432109876543210.5, 12345678901234567890e-3]'
    assert exact_json.loads(text) == orjson.loads(text) == json.loads(text)
