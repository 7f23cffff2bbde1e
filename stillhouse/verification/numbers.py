"""Numbers as people and models write them."""

import re
from decimal import Decimal, localcontext
from typing import Final

RELATIVE_TOLERANCE: Final = Decimal("1e-6")
"""Largest relative difference of two equal numbers unless both are whole."""

_SEPARATOR: Final = "[,_\u00a0\u202f]"
_MINUS: Final = "[-\u2212]"
# A minus after a digit or a closing bracket subtracts; a comma separates thousands only before exactly three digits;
# the power of a letter is part of a unit or a formula.
NUMBER: Final = re.compile(
    rf"(?:(?<![\w)\]^]){_MINUS})?(?<![A-Za-z]\^)(?<![A-Za-z]\^-)"
    rf"(?:\d{{1,3}}(?:{_SEPARATOR}\d{{3}})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][-+]?\d{{1,3}}(?![\w.]))?"
    r"(?:/\d+(?![/\d]))?"
)
_SEPARATORS: Final = re.compile(_SEPARATOR)
_LATEX_SEPARATOR: Final = re.compile(r"\{,\}|\\[,;!](?=\d{3})")
_LATEX_SPACE: Final = re.compile(r"\\[,;:! ]|\\(?:text|mathrm|rm)\s*(?=\{)|[{}$]|\\(?=%)")
_LATEX_POWER: Final = re.compile(r"\}?\^\s*\{(-?\d+)\}")
_LATEX_FRACTION: Final = re.compile(r"\\[dt]?frac\s*\{(\d+)\}\s*\{(\d+)\}")


def last_number(text: str) -> Decimal | None:
    """The last number written in `text`: signed, with thousands separators, decimals, an exponent, or a fraction."""
    # From the end, since a long answer may have hundreds of numbers.
    for line in reversed(plain_digits(text).splitlines()):
        found = NUMBER.findall(line)
        if found:
            return number_of(found[-1])
    return None


def plain_digits(text: str) -> str:
    r"""`text` without the LaTeX around its numbers: separators of thousands, fractions of whole numbers, `\text{}`."""
    if "\\" not in text and "{" not in text:
        return text
    plain = _LATEX_POWER.sub(r"^\1", _LATEX_SEPARATOR.sub(",", text))
    return _LATEX_SPACE.sub(" ", _LATEX_FRACTION.sub(r"\1/\2", plain))


def number_of(match: str) -> Decimal:
    """The value of a match of `NUMBER`."""
    numerator, _, denominator = _SEPARATORS.sub("", match).replace("\u2212", "-").partition("/")
    below = Decimal(denominator) if denominator else Decimal(1)
    return Decimal(numerator) / below if below else Decimal(numerator)


def plain_number(text: str) -> Decimal | None:
    """The value of a text that is exactly one number."""
    text = text.strip()
    return number_of(text) if NUMBER.fullmatch(text) else None


def same_number(
    actual: Decimal, expected: Decimal, tolerance: Decimal | None = None, relative_tolerance: Decimal | None = None
) -> bool:
    """Whether two numbers are equal, up to the larger of the tolerances.

    By default whole numbers must be equal, and others may differ by `RELATIVE_TOLERANCE` of the larger.
    """
    with localcontext(prec=50):
        if actual == expected:
            return True
        if tolerance is None and relative_tolerance is None:
            if _is_whole(actual) and _is_whole(expected):
                return False
            relative_tolerance = RELATIVE_TOLERANCE
        allowed = (relative_tolerance or Decimal(0)) * max(abs(actual), abs(expected))
        return abs(actual - expected) <= max(allowed, tolerance or Decimal(0))


def _is_whole(number: Decimal) -> bool:
    return number == number.to_integral_value()
