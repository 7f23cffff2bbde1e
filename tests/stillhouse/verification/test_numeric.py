from collections.abc import Callable
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhouse.verification.numeric import known_unit, unit_after


def test_units_of_another_kind_are_named(find) -> None:
    note = find("numeric", "5 kg", "5 m").note
    assert note == "the answer is in kilogram, which does not measure what meter does"


@pytest.mark.parametrize(
    ("answer", "expected", "tolerances", "verdict"),
    [
        ("3.3", "3.33", {"tolerance": 0.05}, True),
        ("3.2", "3.33", {"tolerance": 0.05}, False),
        ("3.38", "3.33", {"tolerance": "0.05"}, True),
        ("102", "100", {"relative_tolerance": 0.02}, True),
        ("103", "100", {"relative_tolerance": 0.02}, False),
        ("103", "100", {"relative_tolerance": 0.02, "tolerance": 3}, True),
        ("1.000001", "1", {"tolerance": 0}, False),
        ("5040 m", "5 km", {"tolerance": 0.05}, True),
        ("5060 m", "5 km", {"tolerance": 0.05}, False),
        ("5", "5", {"tolerance": "wide"}, None),
        ("5", "5", {"tolerance": -1}, None),
        ("5", "5", {"relative_tolerance": float("nan")}, None),
        ("5", "5", {"tolerance": True}, None),
    ],
)
def test_tolerances_of_the_row_stand_in_for_the_usual_one(
    find, answer: str, expected: str, tolerances: dict[str, object], verdict: bool | None
) -> None:
    assert find("numeric", answer, expected, **tolerances).verified is verdict


def test_words_of_prose_are_units_only_at_the_end() -> None:
    assert unit_after("5 in the box", 1) is None
    assert unit_after("5 in", 1) == "inch"
    assert unit_after("5 at most", 1) is None
    assert unit_after("5 square meters of cloth", 1) == "meter ** 2"
    assert known_unit("clips") is None


@given(st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**9), max_value=10**9))
def test_a_number_equals_itself_in_any_unit_of_its_kind(find, number: Decimal) -> None:
    assert find("numeric", f"{number}", f"{number}").verified is True
    assert find("numeric", f"it is {number * 1000} m", f"{number} km").verified is True
    assert find("numeric", f"it is {number} kg", f"{number} km").verified is False


DECIMALS = st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-(10**12), max_value=10**12)
FORMS: list[Callable[[Decimal], str]] = [
    str,
    "{:,}".format,
    "\\boxed{{{}}}".format,
    "Answer: {}".format,
    "so the answer is **{:,}**.".format,
    "#### {}".format,
    lambda number: f"{number:,}".replace(",", "{,}"),
    lambda number: str(number).replace("-", "\u2212"),
    lambda number: f"${number.scaleb(-5):f} \\times 10^{{5}}$",
    lambda number: f"{number.scaleb(7):f} \u00d7 10\u207b\u2077",
    lambda number: f"{number.scaleb(-6):f} million",
    lambda number: f"{number.scaleb(3):f}e-3",
    lambda number: f"{number * 3} / 3",
    lambda number: f"\\frac{{{number * 4}}}{{4}}",
]


@given(DECIMALS, st.sampled_from(FORMS))
def test_a_number_equals_itself_in_each_spelling(find, number: Decimal, form: Callable[[Decimal], str]) -> None:
    result = find("numeric", form(number), str(number))
    assert result.verified is True, (form(number), result)


@given(DECIMALS, st.sampled_from(FORMS), st.data())
def test_a_number_changed_in_any_digit_is_never_right(
    find, number: Decimal, form: Callable[[Decimal], str], data: st.DataObject
) -> None:
    digits = str(number)
    place = data.draw(st.sampled_from([index for index, digit in enumerate(digits) if digit.isdigit()]))
    digit = data.draw(st.sampled_from([other for other in "0123456789" if other != digits[place]]))
    changed = Decimal(digits[:place] + digit + digits[place + 1 :])
    assert find("numeric", form(changed), digits).verified is False
    assert find("math", str(changed), digits).verified is False
