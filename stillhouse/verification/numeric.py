"""Answers compared as numbers, with their units if the expected answer has one: `numeric`."""

import re
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from functools import cache, lru_cache
from itertools import chain
from typing import Any, Final, NamedTuple

from stillhouse.types import PromptMetadata
from stillhouse.verification.answers import Answer, expected_answer, read_answer
from stillhouse.verification.numbers import NUMBER, Number, is_one_number, number_of, plain_numbers, same_share
from stillhouse.verification.result import VerificationResult, expected_text

_MAX_QUANTITIES: Final = 32
"""Most numbers examined for a unit, from the last one backwards."""
_WORD: Final = r"(?:[^\W\d_]|[°µ])+(?:\s?(?:\*\*|\^)\s?-?\d|[²³])?"
_UNIT: Final = re.compile(rf"\s*({_WORD}(?:(?:\s?[/*·⋅]\s?|\s){_WORD}){{0,3}})")
_EXPONENT_OF_LENGTH: Final = re.compile(r"(?<![^\W\d])([munckµ]?m|in|ft|yd|mi)([23])\b")
# Words of prose that are also units: inch, year, are, attosecond, technical atmosphere, astronomical unit.
_PROSE: Final = frozenset({"a", "are", "as", "at", "au", "in", "is", "per"})
_ABOUT: Final = re.compile(
    r"\W*(?:(?:about|approximately|approx|around|roughly|exactly|only|USD|EUR|Rs)\b\W*)?", re.IGNORECASE
)
# What follows the number of a final answer: another sentence, a note in brackets, a reason, a place.
_ASIDE: Final = re.compile(
    r"[.;!?](?=\s|\Z)|\n|\s[(\[]|,?\s(?:because|since|as|so|which|where|given|for|with|from|weil|da|in\s\w)\b",
    re.IGNORECASE,
)
_NOTE: Final = re.compile(r"[ \t]\([^()]{1,80}\)\W{0,3}\Z")
_LETTERED: Final = re.compile(r"[kKMBT](?![A-Za-z])")
"""Scales that are also units: `2.5M`."""
_COMPOUND: Final = re.compile(r"\d ?[^\W\d_]{1,12}(?:,| and)? \d")
_GLUED: Final = re.compile(r"(?!(?:st|nd|rd|th)\b)[A-Za-z]")
_DIGIT: Final = re.compile(r"[\d\u00bc-\u00be\u2150-\u215e]")
IN_WORDS: Final = re.compile(
    r"\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|(?:thir|four|fif|six|seven|eigh|nine)(?:teen|ty)"
    r"|twenty|forty|half|third|quarter|dozen|hundred|thousand|million)\b",
    re.IGNORECASE,
)


class _Quantity(NamedTuple):
    number: Number
    unit: str | None
    text: str


def numeric(answer: str, metadata: PromptMetadata) -> VerificationResult:
    """Compare the number that the final answer begins with or that follows its last `=`, else the last one.

    If the expected answer has a unit, the last number in a compatible unit counts, converted: `5000 m` is `5 km`, `5
    kg` is not; a number without a unit is taken to be in the expected one. Words unknown to pint are not units. If the
    expected answer has no unit, units are ignored. `25%` is `0.25` and, since the sign is often left out, `25`.

    `metadata["tolerance"]`, in the expected unit, and `metadata["relative_tolerance"]` replace those of `same_number`.
    An answer whose number is only a part of something is unverified: `10-15`, `2 or 3`, `x + 5`, `twelve`.
    """
    try:
        tolerance, relative = _tolerance(metadata, "tolerance"), _tolerance(metadata, "relative_tolerance")
        expected = _expected_quantity(expected_text(metadata))
    except ValueError as error:
        return VerificationResult(None, str(error))
    read = read_answer(answer)
    try:
        actual = _answered(read, expected.unit)
    except ValueError as error:
        return VerificationResult(None, str(error), read.text)
    if actual is None:
        return VerificationResult(False, "the answer holds no number", read.text)
    if actual.unit != expected.unit:
        note = f"the answer is in {actual.unit}, which does not measure what {expected.unit} does"
        return VerificationResult(False, note, actual.text)
    is_same = same_share(actual.number, expected.number, tolerance, relative)
    return VerificationResult(is_same, compared=actual.text)


def _answered(answer: Answer, expected_unit: str | None) -> _Quantity | None:
    """Return the quantity that counts, in the expected unit if possible; None without any number.

    Raises ValueError if it is not understood.
    """
    text, matches = _numbers(answer, whole_text=expected_unit is not None)
    compatible = (
        match
        for match in matches
        if expected_unit
        and (unit := unit_after(text, match.end()))
        and _converted(Number(Decimal(1)), unit, expected_unit)
    )
    match = next(chain(compatible, matches), None)
    if match is None:
        if IN_WORDS.search(answer.text):
            raise ValueError("a number in words is not understood")
        return None
    is_glued = _GLUED.match(text, match.end()) is not None
    may_have_unit = expected_unit or (is_glued and not _LETTERED.match(text, match.end()))
    unit = unit_after(text, match.end()) if may_have_unit else None
    number = number_of(match)
    near = text[max(match.start() - 16, 0) : match.end() + 24]
    is_part = (unit is None and is_glued) or (expected_unit and unit and _COMPOUND.search(near))
    if number is None or is_part or not is_one_number(text, match):
        raise ValueError(f"not understood as one number: {near!r}")
    written = f"{match[0].strip()} {unit or ''}".strip()
    converted = _converted(number, unit, expected_unit) if expected_unit and unit else number
    return _Quantity(number, unit, written) if converted is None else _Quantity(converted, expected_unit, written)


def _numbers(answer: Answer, *, whole_text: bool) -> tuple[str, list[re.Match[str]]]:
    """Return the text with the numbers that may count, the likeliest first; of a whole text, the last."""
    if answer.kind == "whole":
        lines = [answer.text] if whole_text else answer.text.splitlines()
        part = next((line for line in reversed(lines) if _DIGIT.search(line)), "")
        before_note = _NOTE.sub("", part)
        text = _plain_quantities(before_note if _DIGIT.search(before_note) else part)
        return text, list(NUMBER.finditer(text))[: -_MAX_QUANTITIES - 1 : -1]
    text = _plain_quantities(answer.text)
    first = NUMBER.search(text)
    if first is None:
        return text, []
    aside = _ASIDE.search(text, first.end())
    end = aside.start() if aside else len(text)
    equals = text.rfind("=", 0, end)
    numbers = list(NUMBER.finditer(text, equals + 1, end)) or [first]
    leads = equals > 0 or _ABOUT.fullmatch(text, 0, numbers[0].start())
    return text, numbers[:1] + numbers[:0:-1] if leads else numbers[::-1]


def _plain_quantities(text: str) -> str:
    # With explicit powers of lengths: `cm^2` for `cm2`.
    return _EXPONENT_OF_LENGTH.sub(r"\1^\2", plain_numbers(text))


@lru_cache(maxsize=1024)
def _expected_quantity(text: str) -> _Quantity:
    """Return the quantity of an expected answer; raises ValueError if it holds none, or several."""
    read = Answer(expected_answer(text), 0, "mark")
    try:
        plain, matches = _numbers(read, whole_text=False)
        expected = _answered(read, unit_after(plain, matches[0].end()) if matches else None)
    except ValueError as error:
        raise ValueError(f"the expected answer: {error}") from None
    if expected is None:
        raise ValueError(f"the expected answer holds no number: {text[:80]!r}")
    return expected


def _tolerance(metadata: PromptMetadata, key: str) -> Decimal | None:
    """Return a tolerance of the prompt, which may be text; raises ValueError if it is not a number of at least 0."""
    value = metadata.metadata.get(key)
    if value is None or value == "":
        return None
    with suppress(InvalidOperation):
        tolerance = Decimal(str(value))
        if not isinstance(value, bool) and tolerance.is_finite() and tolerance >= 0:
            return tolerance
    raise ValueError(f"expected metadata.{key} to be a number of at least 0, saw {value!r}")


def unit_after(text: str, position: int) -> str | None:
    """Return the unit at `position` of a text, right after a number; None if pint knows none there.

    The longest run of words that is a unit counts. A word of prose is a unit only if nothing follows it.
    """
    match = _UNIT.match(text, position, position + 80)
    words = longest = match[1] if match else ""
    tried = ""
    while words != tried:
        prose = not _PROSE.isdisjoint(words.casefold().replace(" per ", " ").split())
        if (not prose or words == longest.casefold() in _PROSE) and (unit := known_unit(words)):
            return unit
        words, tried = re.sub(rf"(?:\s?[/*·⋅]\s?|\s){_WORD}\Z", "", words), words
    return None


@lru_cache(maxsize=4096)
def known_unit(text: str) -> str | None:
    """Return pint's name of a unit, as written or in lower case; None if unknown."""
    for spelling in (text, text.lower()):
        try:
            return str(_registry().parse_units(spelling.replace("·", "*").replace("⋅", "*")))
        # Pint raises errors of many kinds, tokenizer and arithmetic errors included.
        except Exception:
            continue
    return None


def _converted(number: Number, unit: str, target_unit: str) -> Number | None:
    """Return the number in another unit; None if they are incompatible."""
    from pint.errors import PintError

    if unit == target_unit:
        return number
    try:
        magnitude = _registry().Quantity(number.above / number.below, unit).to(target_unit).magnitude
    # Other dimensions, differences of temperature, and powers beyond a decimal cannot be converted.
    except (PintError, ArithmeticError):
        return None
    return Number(Decimal(str(magnitude)))


@cache
def _registry() -> Any:
    import pint

    return pint.UnitRegistry(non_int_type=Decimal)
