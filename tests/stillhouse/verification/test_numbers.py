from decimal import Decimal
from fractions import Fraction

import pytest

from stillhouse.verification.numbers import NUMBER, is_one_number, number_of, plain_numbers


def last_number(text: str) -> Fraction | None:
    """The value of the last number in a text, without a percent sign; None if it is not one."""
    plain = plain_numbers(text)
    match = list(NUMBER.finditer(plain))[-1]
    number = number_of(match) if is_one_number(plain, match) else None
    return None if number is None else Fraction(number.above) / Fraction(number.below)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("The answer is 10234.", "10234"),
        ("First 3, then 1,234,567.50 coins", "1234567.50"),
        *((minus, "-5") for minus in ("it is -5", "it is \u22125", "it is \uff0d5", "it is \u20135")),
        *((thousands, "1234567") for thousands in ("1,234,567", "1 234 567", "1\u202f234\u202f567", "1{,}234{,}567")),
        *((thousands, "1234567") for thousands in ("1\\,234\\,567", "1'234'567", "12,34,567", "1_234_567")),
        *(
            (scientific, "120000")
            for scientific in ("1.2 \\times 10^5", "1.2\\times10^{5}", "1.2\\cdot 10^5", "1.2*10^5")
        ),
        *(
            (scientific, "120000")
            for scientific in ("1.2\u00d710\u2075", "1.2 x 10^5", "1.2X10^5", "1.2 \u00b7 10\u2075", "1.2*10**5")
        ),
        *((scientific, "120000") for scientific in ("1.2e5", "1.2E+05", "1.2e5.", "1.2 \\times 10^{+5}")),
        *(
            (mixed, "5/4")
            for mixed in ("1 1/4", "1\\frac{1}{4}", "1 \\frac14", "1\\dfrac14", "1\u00bc", "1 \u00bc", "1 1 / 4")
        ),
        *(
            (fraction, "-2/3")
            for fraction in ("\\frac{-2}{3}", "-\\frac{2}{3}", "-\\tfrac23", "-2/3", "-2 / 3", "\u22122\u20443")
        ),
        *((power, "1024") for power in ("2^10", "2^{10}", "2\u00b9\u2070", "2**10")),
        *(
            (scaled, "2500000")
            for scaled in (
                "2.5 million",
                "2.5 Million",
                "2.5-million",
                "2500 thousand",
                "25 hundred thousand",
                "250\u4e07",
            )
        ),
        *((percent, "50") for percent in ("50%", "50\\%", "50 percent", "50 per cent", "50 pct")),
        ("\\frac{0.5}{2}", "0.25"),
        ("2^{-3}", "1/8"),
        (".5", "0.5"),
        ("\uff11\uff12", "12"),
        ("\\boxed{42}", "42"),
        ("9.8 m/s^2", "9.8"),
        ("9.8\\,\\text{m s}^{-2}", "9.8"),
        ("a CO2 level of 7", "7"),
        ("$7", "7"),
        ("0.250", "0.25"),
        ("98765432109876543210", "98765432109876543210"),
        *(
            (part, None)
            for part in ("10-5", "(3)-4", "x + 4", "2 or 3", "2, 3", "12,34", "1:30", "5 \u00b1 1", "3.14.15", "101_2")
        ),
        *(
            (part, None)
            for part in (
                "x < 5",
                "not 5",
                "\\sqrt{5}",
                "\u221a5",
                "\\log 5",
                "1/0",
                "1/2/3",
                "99^9999",
                "5 - x",
                "1 234",
                "2\\pi",
            )
        ),
    ],
)
def test_numbers_are_read_as_people_write_them(text: str, number: str | None) -> None:
    assert last_number(text) == (
        None if number is None else Fraction(number) if "/" in number else Fraction(Decimal(number))
    )
