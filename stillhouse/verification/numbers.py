r"""Numbers as people write them: `1,234.5`, `1 3/4`, `\frac{-2}{3}`, `1.2 \times 10^5`, `2.5 million`, `50%`."""

import math
import re
import unicodedata
from decimal import Context, Decimal, localcontext
from typing import Final, NamedTuple

from stillhouse.verification.text import plain

RELATIVE_TOLERANCE: Final = Decimal("1e-6")
"""Largest relative difference of two equal numbers of which one is written with decimals."""
_WHOLE_TOLERANCE: Final = Decimal("1e-3")
"""Largest difference of a whole number and an equal one with decimals."""
_EXACT: Final = Context(prec=50_000)
_MAX_DIGITS: Final = 10_000

_SCALES: Final = {
    "dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
    "\u5343": 10**3, "\u4e07": 10**4, "\u4ebf": 10**8,
}  # fmt: skip
# Separators stand before three digits, in India also before two; spaces only in larger numbers.
_DIGITS: Final = (
    r"(?:\d{1,3}(?:,\d\d\d?){0,9},\d{3}(?!\d)|\d{1,3}(?:[,_'\u00a0\u202f\u2009]\d{3})+(?!\d)"
    r"|\d{1,3}(?: \d{3}){2,}(?!\d)|\d+)(?:\.\d+)?|(?<![\w.])\.\d+"
)
# A minus after a digit or a closing bracket subtracts; the power of a letter is part of a unit or a formula.
NUMBER: Final = re.compile(
    rf"(?<![A-Za-z_])(?<![A-Za-z]\^)(?<![A-Za-z]\^-)(?:(?<![\w)\]^.])(?P<sign>[-+]))?"
    rf"(?:(?P<whole>\d+) (?=\d+ ?/ ?\d))?(?P<above>{_DIGITS})(?:[eE](?P<exponent>[-+]?\d{{1,4}})(?!\w|\.\d))?"
    r"(?:\*10\^(?P<ten>[-+]?\d{1,4})(?!\d)|\^(?P<power>[-+]?\d{1,4})(?!\d)| ?/ ?(?P<below>\d+(?:\.\d+)?)(?! ?/|\d))?"
    rf"(?P<scale>(?:[ -]?(?i:{'|'.join(_SCALES)})s?(?![a-z])){{1,3}})?(?P<percent> ?(?:%|per ?cent\b|pct\b))?"
)
_SCALE: Final = re.compile("|".join(_SCALES))
_SPECIAL: Final = re.compile(r"[\\{}$^*]|\d ?[xX] ?1")
_SUPERSCRIPT: Final = re.compile(r"(?<=\d)[\u207a\u207b]?[\u2070\u00b9\u00b2\u00b3\u2074-\u2079]+")
_VULGAR: Final = re.compile(r"(\d?) ?([\u00bc-\u00be\u2150-\u215e])")
_LATEX: Final = (
    (re.compile(r"\}?(?:\^|(?<=\d)\*\*(?=-?\d)) ?\{? ?([-+]?\d+) ?\}?"), r"^\1"),
    (re.compile(r" ?(?:\\(?:times|cdot|ast)|[\u00d7\u00b7\u22c5\u2217*]|(?<=\d) ?[xX](?= ?10\b)) ?(?=\d)"), "*"),
    (re.compile(r"\{,\}|,?\\[,;!:] ?(?=\d{3})"), ","),
    (re.compile(r"(?<=\d) ?(?=\\[dtc]?frac)"), " "),
    (re.compile(r"\\[dtc]?frac ?(?:(\d) ?(\d)|\{ ?([-+]?[\d.]+) ?\} ?\{ ?([\d.]+) ?\})"), r"\1\3/\2\4"),
    (re.compile(r"\\[,;:! ]|\\(?:text|mathrm|rm|mathbf|textbf) ?(?=\{)|\\(?=[%$])|[{}$]"), " "),
)
_OR: Final = r",? (?:or|and|to|und|oder|bis|et|ou|y|o) (?:[A-Za-z] ?= ?)?"
_UNIT: Final = r"(?: ?[^\W\d_]{1,12})?"
_NO_FUNCTION: Final = (
    r"(?:approx|sim|q?quad|implies|iff|(?:long)?rightarrow|to|therefore|boxed|fbox|left|displaystyle|text\w*|math\w\w|large|bf"
    r"|pounds|euro|item)(?![a-z])"
)
# What shows that a number is only a part: before it,
_BEFORE: Final = "|".join(
    (
        r"(?:(?:\A|[^A-Za-z])[A-Za-z]|[\d)\]%]) ?[-+*/^_:,\u00b1]",  # an operand and an operator, or an element,
        rf"\d{_UNIT}{_OR}|\d[ .]",  # another number,
        rf"\u221a|(?:\b(?:sqrt|log|ln|exp|sin|cos|tan|pi)|\\(?!{_NO_FUNCTION})[A-Za-z]+) ?[({{\[]?",  # a function,
        r"[\u2264\u2265\u2260]|(?:\A|[\w)]) ?[<>]=?|\\[lgn](?:eq?|t)",  # a relation,
        r"\+/?- ?|\\pm|(?:\A|[=(]) ?- ",  # a sign apart from it,
        r"(?:\b(?:not|never|neither|nicht|least|most|than|between|minus|negative)\b|n't\b)[^.,;:]{0,12}",  # a word;
    )
)
# behind it an operator and an operand, another number, a function.
_AFTER: Final = "|".join(
    (
        r" ?[-+*/^_:\u00b1] ?(?:\d|[A-Za-z](?![A-Za-z])|\(|\\)",
        rf",? ?\d|\.\d|{_UNIT}{_OR}-?\d",
        r" ?(?:[\u03c0\u221a]|pi\b|sqrt|\\(?:pi|sqrt|log|ln|frac))",
    )
)
_PART_BEFORE: Final = re.compile(rf"(?:{_BEFORE}) ?\Z", re.IGNORECASE)
_PART_AFTER: Final = re.compile(_AFTER, re.IGNORECASE)


class Number(NamedTuple):
    """An exact value, `above / below`."""

    above: Decimal
    below: Decimal = Decimal(1)
    percent: bool = False


def plain_numbers(text: str) -> str:
    r"""Return `text` with its numbers in ASCII, without LaTeX: `*10^5` for `\times 10^{5}`, `1 3/4` for `1\frac34`."""
    if not text.isascii():
        text = _SUPERSCRIPT.sub(lambda power: "^" + unicodedata.normalize("NFKC", power[0]), text)
        text = _VULGAR.sub(lambda half: f"{half[1]} {unicodedata.normalize('NFKC', half[2])}", text).replace(
            "\u2044", "/"
        )
        text = plain(text)
    elif not _SPECIAL.search(text):
        return text
    for pattern, replacement in _LATEX:
        text = pattern.sub(replacement, text)
    return text


def number_of(match: re.Match[str]) -> Number | None:
    """Return the value of a match of `NUMBER`; None if it has none, as `1/0`, or too many digits."""
    sign, whole, written, exponent, ten, power, divisor, scale, percent = match.groups()
    digits = written if written.isdigit() else re.sub(r"[^\d.]", "", written)
    if len(match[0]) > _MAX_DIGITS:
        return Number(Decimal(digits)) if digits == match[0] else None
    above, below = Decimal(f"{sign or ''}{digits}e{int(exponent or ten or 0)}"), Decimal(1)
    if whole or power or divisor or scale:
        with localcontext(_EXACT):
            if power:
                if len(digits) * abs(int(power)) > _MAX_DIGITS:
                    return None
                above = (abs(above) ** abs(int(power))).copy_sign(above)
                above, below = (above, below) if int(power) >= 0 else (below.copy_sign(above), abs(above))
            below = Decimal(divisor) if divisor else below
            if not below:
                return None
            above += (Decimal(whole or 0) * below).copy_sign(above)
            above *= math.prod(_SCALES[name] for name in _SCALE.findall((scale or "").lower()))
            if below != 1 and not above % below:
                above, below = above // below, Decimal(1)
    return Number(above, below, percent is not None)


def number_alone(text: str) -> Number | None:
    """Return the number that a text is; None if it is anything else."""
    match = NUMBER.fullmatch(plain_numbers(text).strip())
    return number_of(match) if match else None


def is_one_number(text: str, match: re.Match[str]) -> bool:
    """Return whether a match of `NUMBER` is no operand, element, bound, or ruled out."""
    start, end = match.span()
    is_free_before = start == 0 or not _PART_BEFORE.search(text[max(start - 24, 0) : start])
    return is_free_before and (end == len(text) or not _PART_AFTER.match(text[end : end + 24]))


def same_number(
    actual: Number, expected: Number, tolerance: Decimal | None = None, relative_tolerance: Decimal | None = None
) -> bool:
    """Return whether two numbers are equal, up to the larger of the tolerances.

    By default whole numbers and fractions must be equal. Where one has decimals they may differ by `RELATIVE_TOLERANCE`
    of the larger, if that is less than a unit in the last place of either.
    """
    if actual == expected:
        return True
    with localcontext(_EXACT):
        unit = actual.below * expected.below
        left, right = actual.above * expected.below, expected.above * actual.below
        difference, larger = abs(left - right), max(abs(left), abs(right))
        if tolerance is not None or relative_tolerance is not None:
            return difference <= max((relative_tolerance or 0) * larger, (tolerance or 0) * unit)
        if not (has_decimals(actual) or has_decimals(expected)):
            return difference == 0
        place = max(map(_last_place, (actual, expected))) * unit
        # Rounded, or cut off.
        is_cut = abs(left if _last_place(actual) * unit == place else right) < larger
        return difference <= RELATIVE_TOLERANCE * larger and (difference < place if is_cut else 2 * difference <= place)


def has_decimals(number: Number) -> bool:
    """Return whether a number is neither whole nor a fraction."""
    return number.below == 1 and number.above != number.above.to_integral_value()


def same_share(
    actual: Number, expected: Number, tolerance: Decimal | None = None, relative_tolerance: Decimal | None = None
) -> bool:
    """Return `same_number`, where `25%` is `0.25` and, since the sign is often left out, `25`."""
    if actual.percent != expected.percent:
        as_share = actual._replace(above=actual.above.scaleb(-2 if actual.percent else 2, _EXACT))
        if same_number(as_share, expected, tolerance, relative_tolerance):
            return True
        if abs(actual.above) < actual.below:
            return False
    return same_number(actual, expected, tolerance, relative_tolerance)


def _last_place(number: Number) -> Decimal:
    """Return a unit in the last place; fractions are exact, and whole numbers nearly so."""
    if has_decimals(number):
        return Decimal((0, (1,), int(number.above.as_tuple().exponent)))
    return _WHOLE_TOLERANCE if number.below == 1 else Decimal(0)
