"""Answers compared as numbers, with their units where the expected answer has one: `numeric`."""

from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Final, NamedTuple

from stillhouse.types import PromptMetadata
from stillhouse.verification.answers import stated_answer
from stillhouse.verification.finding import Finding, expected_text
from stillhouse.verification.numbers import NUMBER, last_number, number_of, plain_digits, same_number
from stillhouse.verification.units import converted, plain_units, unit_after

_MAX_QUANTITIES: Final = 32
"""Numbers looked at for a unit, from the last one backwards."""


class _Quantity(NamedTuple):
    number: Decimal
    unit: str | None


def numeric(answer: str, metadata: PromptMetadata) -> Finding:
    """Compares the last number of what the answer marks as such, else of the whole answer.

    Where the expected answer has a unit, the last number in a unit of the same kind counts, converted: `5000 m` is
    `5 km`, `5 kg` is not. Without any such unit the answer's last number is taken to be in the expected unit: who
    answers `5` where kilometres are expected means kilometres, and a word that pint does not know is no unit. Where
    the expected answer has no unit, units are ignored.

    `metadata["tolerance"]` is the largest difference accepted, in the expected unit; `metadata["relative_tolerance"]`
    the largest as a share of the larger number. Without either, see `same_number`.
    """
    wanted = _expected_quantity(expected_text(metadata))
    if wanted is None:
        return Finding(None, f"the expected answer holds no number: {expected_text(metadata)[:80]!r}")
    try:
        tolerance, relative = _tolerance(metadata, "tolerance"), _tolerance(metadata, "relative_tolerance")
    except ValueError as error:
        return Finding(None, str(error))
    stated = stated_answer(answer)
    for text in (stated, answer):
        seen = None if text is None else _answered(text, wanted.unit)
        if seen is not None:
            break
    else:
        return Finding(False, "the answer holds no number")
    if seen.unit != wanted.unit:
        return Finding(False, f"the answer is in {seen.unit}, which does not measure what {wanted.unit} does")
    return Finding(same_number(seen.number, wanted.number, tolerance, relative))


def _answered(text: str, wanted_unit: str | None) -> _Quantity | None:
    """The quantity that counts, in the wanted unit where it can be; None without any number."""
    if wanted_unit is None:
        number = last_number(text)
        return None if number is None else _Quantity(number, None)
    last = None
    for seen in _quantities(text):
        if seen.unit is None:
            last = last or seen._replace(unit=wanted_unit)
            continue
        number = converted(seen.number, seen.unit, wanted_unit)
        if number is not None:
            return _Quantity(number, wanted_unit)
        last = last or seen
    return last


def _quantities(text: str) -> Iterator[_Quantity]:
    """The numbers of a text with their units, the last one first."""
    plain = plain_units(plain_digits(text))
    for found in reversed(list(NUMBER.finditer(plain))[-_MAX_QUANTITIES:]):
        yield _Quantity(number_of(found[0]), unit_after(plain, found.end()))


@lru_cache(maxsize=1024)
def _expected_quantity(text: str) -> _Quantity | None:
    return next(_quantities(text), None)


def _tolerance(metadata: PromptMetadata, key: str) -> Decimal | None:
    """A tolerance of the row, which columns of text hold as text.

    Raises:
        ValueError: it is no number of at least 0.
    """
    value = metadata.metadata.get(key)
    if value is None or value == "":
        return None
    try:
        tolerance = Decimal(str(value))
    except InvalidOperation:
        tolerance = Decimal(-1)
    if isinstance(value, bool) or not tolerance.is_finite() or tolerance < 0:
        raise ValueError(f"expected metadata.{key} to be a number of at least 0, saw {value!r}")
    return tolerance
