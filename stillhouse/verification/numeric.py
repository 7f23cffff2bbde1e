"""Answers compared as numbers, with their units if the expected answer has one: `numeric`."""

import re
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal, InvalidOperation, localcontext
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple

from stillhouse.types import PromptMetadata
from stillhouse.verification.answers import stated_answer
from stillhouse.verification.result import VerificationResult, expected_text

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
_MAX_QUANTITIES: Final = 32
"""Most numbers examined for a unit, from the last one backwards."""
_WORD: Final = r"(?:[^\W\d_]|[%°µ])+(?:\s?(?:\*\*|\^)\s?-?\d|[²³])?"
_UNIT: Final = re.compile(rf"\s*({_WORD}(?:(?:\s?[/*·⋅]\s?|\s){_WORD}){{0,3}})")
_EXPONENT_OF_LENGTH: Final = re.compile(r"(?<![^\W\d])([munckµ]?m|in|ft|yd|mi)([23])\b")
_MAX_CHARS: Final = 80
# Words of prose that are also units: inch, year, are, attosecond, technical atmosphere, astronomical unit.
_PROSE: Final = frozenset({"a", "are", "as", "at", "au", "in", "is", "per"})


def last_number(text: str) -> Decimal | None:
    """The last number written in `text`: signed, with thousands separators, decimals, an exponent, or a fraction."""
    # From the end, since a long answer may have hundreds of numbers.
    for line in reversed(_plain_digits(text).splitlines()):
        for last in NUMBER.findall(line)[-1:]:
            return number_of(last)
    return None


def _plain_digits(text: str) -> str:
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
            if all(number == number.to_integral_value() for number in (actual, expected)):
                return False
            relative_tolerance = RELATIVE_TOLERANCE
        allowed = (relative_tolerance or Decimal(0)) * max(abs(actual), abs(expected))
        return abs(actual - expected) <= max(allowed, tolerance or Decimal(0))


class _Quantity(NamedTuple):
    number: Decimal
    unit: str | None


def numeric(answer: str, metadata: PromptMetadata) -> VerificationResult:
    """Compares the last number of the answer's marked part, else of the whole answer.

    If the expected answer has a unit, the last number in a compatible unit counts, converted: `5000 m` is `5 km`, `5
    kg` is not. Without such a unit the last number is taken to be in the expected unit; words unknown to pint are not
    units. If the expected answer has no unit, units are ignored.

    `metadata["tolerance"]` is the largest accepted difference, in the expected unit; `metadata["relative_tolerance"]`
    is relative to the larger number. Without either, see `same_number`.
    """
    expected = _expected_quantity(expected_text(metadata))
    if expected is None:
        return VerificationResult(None, f"the expected answer holds no number: {expected_text(metadata)[:80]!r}")
    try:
        tolerance, relative = _tolerance(metadata, "tolerance"), _tolerance(metadata, "relative_tolerance")
    except ValueError as error:
        return VerificationResult(None, str(error))
    actual = _answered(stated_answer(answer) or "", expected.unit) or _answered(answer, expected.unit)
    if actual is None:
        return VerificationResult(False, "the answer holds no number")
    if actual.unit != expected.unit:
        note = f"the answer is in {actual.unit}, which does not measure what {expected.unit} does"
        return VerificationResult(False, note)
    return VerificationResult(same_number(actual.number, expected.number, tolerance, relative))


def _answered(text: str, expected_unit: str | None) -> _Quantity | None:
    """The quantity that counts, in the expected unit if possible; None without any number."""
    if expected_unit is None:
        number = last_number(text)
        return None if number is None else _Quantity(number, None)
    last = None
    for actual in _quantities(text):
        if actual.unit is None:
            last = last or actual._replace(unit=expected_unit)
            continue
        number = _converted(actual.number, actual.unit, expected_unit)
        if number is not None:
            return _Quantity(number, expected_unit)
        last = last or actual
    return last


def _quantities(text: str) -> Iterator[_Quantity]:
    """The numbers of a text with their units, the last one first."""
    # With explicit powers of lengths: `cm^2` for `cm2`.
    plain = _EXPONENT_OF_LENGTH.sub(r"\1^\2", _plain_digits(text))
    for number in reversed(list(NUMBER.finditer(plain))[-_MAX_QUANTITIES:]):
        yield _Quantity(number_of(number[0]), unit_after(plain, number.end()))


@lru_cache(maxsize=1024)
def _expected_quantity(text: str) -> _Quantity | None:
    return next(_quantities(text), None)


def _tolerance(metadata: PromptMetadata, key: str) -> Decimal | None:
    """A tolerance of the prompt, which may be text; raises ValueError if it is not a number of at least 0."""
    value = metadata.metadata.get(key)
    if value is None or value == "":
        return None
    with suppress(InvalidOperation):
        tolerance = Decimal(str(value))
        if not isinstance(value, bool) and tolerance.is_finite() and tolerance >= 0:
            return tolerance
    raise ValueError(f"expected metadata.{key} to be a number of at least 0, saw {value!r}")


def unit_after(text: str, position: int) -> str | None:
    """The unit at `position` of a text, right after a number; None if pint knows none there.

    The longest run of words that is a unit counts. A word of prose is a unit only if nothing follows it.
    """
    match = _UNIT.match(text, position, position + _MAX_CHARS)
    if match is None:
        return None
    words = match[1]
    while True:
        prose = not _PROSE.isdisjoint(words.casefold().replace(" per ", " ").split())
        if not prose or words == match[1].casefold() in _PROSE:
            unit = known_unit(words)
            if unit is not None:
                return unit
        shorter = re.sub(rf"(?:\s?[/*·⋅]\s?|\s){_WORD}\Z", "", words)
        if shorter == words:
            return None
        words = shorter


@lru_cache(maxsize=4096)
def known_unit(text: str) -> str | None:
    """Pint's name of a unit, as written or in lower case; None if unknown."""
    for spelling in (text, text.lower()):
        try:
            return str(_registry().parse_units(spelling.replace("·", "*").replace("⋅", "*")))
        # Pint raises errors of many kinds, tokenizer and arithmetic errors included.
        except Exception:
            continue
    return None


def _converted(number: Decimal, unit: str, target_unit: str) -> Decimal | None:
    """The number in another unit; None if they are incompatible."""
    from pint.errors import PintError

    if unit == target_unit:
        return number
    try:
        magnitude = _registry().Quantity(number, unit).to(target_unit).magnitude
    # Other dimensions, differences of temperature, and powers beyond a decimal cannot be converted.
    except (PintError, ArithmeticError):
        return None
    return magnitude if isinstance(magnitude, Decimal) else Decimal(str(magnitude))


@cache
def _registry() -> Any:
    import pint

    return pint.UnitRegistry(non_int_type=Decimal)
