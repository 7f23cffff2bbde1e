from fractions import Fraction

import pytest

from stillhouse.verification.numbers import NUMBER, is_one_number, number_of, plain_numbers


def last_number(text: str) -> Fraction | None:
    """The value of the last number in a text, without a percent sign; None if it is not one."""
    plain = plain_numbers(text)
    match = list(NUMBER.finditer(plain))[-1]
    number = number_of(match) if is_one_number(plain, match) else None
    return None if number is None else Fraction(number.above) / Fraction(number.below)


NUMBERS = {
    "10234": "The answer is 10234.",
    "1234567.50": "First 3, then 1,234,567.50 coins",
    "-5": "it is -5 | it is \u22125 | it is \uff0d5 | it is \u20135",
    "1234567": (
        "1,234,567 | 1 234 567 | 1\u202f234\u202f567 | 1{,}234{,}567 | 1\\,234\\,567"
        " | 1'234'567 | 12,34,567 | 1_234_567"
    ),
    "120000": (
        "1.2 \\times 10^5 | 1.2\\times10^{5} | 1.2\\cdot 10^5 | 1.2*10^5 | 1.2\u00d710\u2075 | 1.2 x 10^5 | 1.2X10^5"
        " | 1.2 \u00b7 10\u2075 | 1.2*10**5 | 1.2e5 | 1.2E+05 | 1.2e5. | 1.2 \\times 10^{+5}"
    ),
    "5/4": "1 1/4 | 1\\frac{1}{4} | 1 \\frac14 | 1\\dfrac14 | 1\u00bc | 1 \u00bc | 1 1 / 4",
    "-2/3": "\\frac{-2}{3} | -\\frac{2}{3} | -\\tfrac23 | -2/3 | -2 / 3 | \u22122\u20443",
    "1024": "2^10 | 2^{10} | 2\u00b9\u2070 | 2**10",
    "2500000": "2.5 million | 2.5 Million | 2.5-million | 2500 thousand | 25 hundred thousand | 250\u4e07",
    "50": "50% | 50\\% | 50 percent | 50 per cent | 50 pct",
    "0.25": "\\frac{0.5}{2} | 0.250",
    "1/8": "2^{-3}",
    "0.5": ".5",
    "12": "\uff11\uff12",
    "42": "\\boxed{42}",
    "9.8": "9.8 m/s^2 | 9.8\\,\\text{m s}^{-2}",
    "7": "a CO2 level of 7 | $7",
    "98765432109876543210": "98765432109876543210",
    "": (
        "10-5 | (3)-4 | x + 4 | 2 or 3 | 2, 3 | 12,34 | 1:30 | 5 \u00b1 1 | 3.14.15 | 101_2 | x < 5 | not 5 | \\sqrt{5}"
        " | \u221a5 | \\log 5 | 1/0 | 1/2/3 | 99^9999 | 5 - x | 1 234 | 2\\pi"
    ),
}
"""Texts by the number that they end with; nothing where they end with none."""


@pytest.mark.parametrize(("text", "number"), [(text, key) for key in NUMBERS for text in NUMBERS[key].split(" | ")])
def test_numbers_are_read_as_people_write_them(text: str, number: str) -> None:
    assert last_number(text) == (Fraction(number) if number else None)
