from collections.abc import Callable
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhouse.verification.numeric import known_unit, unit_after


@pytest.mark.parametrize(
    ("answer", "expected", "verdict"),
    [
        ("The answer is 1,234.", "1234", True),
        ("The answer is 1234.0", "1234", True),
        ("The answer is 1235.", "1234", False),
        ("\\boxed{72}. She sold 72 clips in 2 months.", "72", True),
        ("72 clips in 2 months", "72", False),
        ("Answer: 48 + 24 = 72\n(in 2 months)", "72", True),
        ("Answer: seventy-two, which is 72", "72", True),
        ("I cannot say.", "1234", False),
        ("100000001", "100000000", False),
        ("0.33333333", "1/3", True),
        ("0.33", "1/3", False),
        ("1e999", "1e-999", False),
        ("9" * 5000, "9" * 5000, True),
        ("5 kilograms", "5", True),
        ("5 clips", "72 clips", False),
        ("5", "no number here", None),
        ("\\boxed{5 \\times 10^{-34}}", "6.63 \\times 10^{-34}", False),
        ("7 * 10^3", "5 * 10^3", False),
        ("\\boxed{1.2 \\times 10^{5}}", "120000", True),
        ("That is $1.2\\times10^5$.", "1.2e5", True),
        ("about 3\u00d710\u2078", "3e8", True),
        ("Answer: 1 1/4", "5/4", True),
        ("They ran 3 1/2 miles", "3.5", True),
        ("Answer: 1/2", "2 1/2", False),
        ("Answer: 3 / 4", "3/4", True),
        ("\\boxed{\\frac{0.5}{2}}", "0.25", True),
        ("Answer: 2.5 million", "2500000", True),
        ("Answer: 2.5 billion", "2.5 million", False),
        ("It costs $29.00.", "29", True),
        ("98765432109876543211", "98765432109876543210", False),
        ("Answer: 72. There are 3 more.", "72", True),
        ("Answer: 72 (of 80)", "72", True),
        ("Answer: 2 or 3", "3", None),
        ("Answer: at least 5", "5", None),
        ("x + 5", "5", None),
        ("0.\\overline{3}", "3", None),
        ("seventy-two", "72", None),
        ("50%", "0.5", True),
        ("0.5%", "0.5", False),
    ],
)
def test_numbers_are_compared(find, answer: str, expected: str, verdict: bool | None) -> None:
    assert find("numeric", answer, expected).verified is verdict


@pytest.mark.parametrize(
    ("answer", "expected", "verdict"),
    [
        ("It is 5000 m away.", "5 km", True),
        ("5000 metres", "5 km", True),
        ("5 km (3.1 miles)", "5 km", True),
        ("5 kg", "5 m", False),
        ("5", "5 km", True),
        ("5000", "5 km", False),
        ("5 in total", "5 km", True),
        ("5 steps", "5 km", True),
        ("5 km in 2 steps, in 1999", "5 km", True),
        ("12 in.", "1 ft", True),
        ("90 min", "1.5 hours", True),
        ("36 km/h", "10 m/s", True),
        ("10 meters per second", "10 m/s", True),
        ("25 \u00b0C", "298.15 kelvin", True),
        ("50\\%", "50%", True),
        ("100 cm2", "0.01 m^2", True),
        ("\\boxed{5000\\text{ m}}", "5 km", True),
        ("9.81 m/s\u00b2", "9.81 m/s^2", True),
        ("0.01 m^2", "100 cm2", True),
        ("5 degC/m", "5 km", False),
        ("180 degrees", "3.14159265 radians", True),
        ("5 KM", "5 km", True),
        ("\\boxed{3 \\times 10^{8} \\text{ m/s}}", "3e8 m/s", True),
        ("3 hours 30 minutes", "30 minutes", None),
    ],
)
def test_units_are_converted(find, answer: str, expected: str, verdict: bool | None) -> None:
    assert find("numeric", answer, expected).verified is verdict


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


@given(st.integers(min_value=0, max_value=10**12), st.integers(min_value=1, max_value=10**6))
def test_whole_numbers_that_differ_are_never_equal(find, number: int, difference: int) -> None:
    assert find("numeric", f"{number + difference}", f"{number}").verified is False


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
