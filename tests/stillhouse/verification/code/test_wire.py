import json
from collections import Counter, deque
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from stillhouse.verification.code.wire import MAX_DEPTH, Malformed, NotEncodable, decode, encode, loads


def refuse_value(value: Any) -> Any:
    raise NotEncodable(type(value).__name__)


def refuse_form(form: list[Any]) -> Any:
    raise Malformed(str(form))


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -(10**4000),
        0.1,
        float("-inf"),
        "\ud800\n",
        b"\x00\xff",
        [1, (2, {3}), {"a": {(4, 5): frozenset({6})}}],
        1 - 2j,
        range(1, 9, 2),
        Fraction(1, 3),
        Decimal("1.10"),
        Counter("aab"),
        deque([1]),
    ],
)
def test_plain_values_arrive_with_their_exact_types(value: Any) -> None:
    arrived = decode(loads(json.dumps(encode(value, refuse_value, MAX_DEPTH)).encode()), refuse_form, MAX_DEPTH)
    assert arrived == value
    assert type(arrived) is type(value)
    assert repr(arrived) == repr(value)


def test_what_overrides_a_plain_type_is_no_plain_value() -> None:
    class Sly(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

    for value in (Sly(1), [Sly(1)], {Sly(1): 2}, object(), type("Text", (str,), {})("x")):
        with pytest.raises(NotEncodable):
            encode(value, refuse_value, MAX_DEPTH)


def test_a_value_in_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(NotEncodable, match="contains itself"):
        encode(value, refuse_value, MAX_DEPTH)


@pytest.mark.parametrize(
    "form",
    [
        {"a": 1},
        [],
        ["list"],
        ["list", 5],
        ["set", [["list", []]]],
        ["dict", [[1]]],
        ["int", "x"],
        ["bytes", "zz"],
        ["Decimal", "x"],
        ["array", "O", [1], "00"],
        ["array", "<i8", [10**9], ""],
        [["list"], 1],
        ["os.system", "true"],
        None,
    ],
)
def test_a_form_that_is_none_is_malformed(form: Any) -> None:
    if form is None:
        for _ in range(MAX_DEPTH + 2):
            form = ["list", [form]]
    with pytest.raises(Malformed):
        decode(form, refuse_form, MAX_DEPTH)


def test_bytes_that_are_no_message_are_malformed() -> None:
    for data in (b"", b"{", b"\xff", b"[" * 100_000, json.dumps("9" * 5000).replace('"', "").encode()):
        with pytest.raises(Malformed):
            loads(data)
