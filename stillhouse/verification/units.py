"""Units of quantities, read and converted by pint."""

import re
from decimal import Decimal
from functools import cache, lru_cache
from typing import Any, Final

_WORD: Final = r"(?:[^\W\d_]|[%°µ])+(?:\s?(?:\*\*|\^)\s?-?\d|[²³])?"
_UNIT: Final = re.compile(rf"\s*({_WORD}(?:(?:\s?[/*·⋅]\s?|\s){_WORD}){{0,3}})")
_EXPONENT_OF_LENGTH: Final = re.compile(r"(?<![^\W\d])([munckµ]?m|in|ft|yd|mi)([23])\b")
_MAX_CHARS: Final = 80
# Words of prose that are also units: inch, year, are, attosecond, technical atmosphere, astronomical unit.
_PROSE: Final = frozenset({"a", "are", "as", "at", "au", "in", "is", "per"})


def plain_units(text: str) -> str:
    """`text` with the powers of lengths written as such: `cm^2` for `cm2`."""
    return _EXPONENT_OF_LENGTH.sub(r"\1^\2", text)


def unit_after(text: str, place: int) -> str | None:
    """The unit written at `place` of a text, right after a number; None where no unit of pint's stands there.

    The longest run of words that is a unit counts. A word of prose counts as a unit only where nothing follows it.
    """
    found = _UNIT.match(text, place, place + _MAX_CHARS)
    if found is None:
        return None
    words = found[1]
    while True:
        prose = not _PROSE.isdisjoint(words.casefold().replace(" per ", " ").split())
        if not prose or words == found[1].casefold() in _PROSE:
            unit = known_unit(words)
            if unit is not None:
                return unit
        shorter = re.sub(rf"(?:\s?[/*·⋅]\s?|\s){_WORD}\Z", "", words)
        if shorter == words:
            return None
        words = shorter


@lru_cache(maxsize=4096)
def known_unit(text: str) -> str | None:
    """Pint's name of a unit, tried as written and in lower case; None where pint knows none."""
    for spelling in (text, text.lower()):
        try:
            return str(_registry().parse_units(spelling.replace("·", "*").replace("⋅", "*")))
        # Pint meets what is no unit with errors of many kinds, of its tokenizer and of arithmetic among them.
        except Exception:
            continue
    return None


def converted(number: Decimal, unit: str, wanted: str) -> Decimal | None:
    """`number` of `unit` in the unit `wanted`; None where the two measure different things."""
    from pint.errors import PintError

    if unit == wanted:
        return number
    registry = _registry()
    try:
        magnitude = registry.Quantity(number, unit).to(wanted).magnitude
    # Other dimensions; no difference in temperature, nor a power beyond what a decimal holds, can be converted either.
    except (PintError, ArithmeticError):
        return None
    return magnitude if isinstance(magnitude, Decimal) else Decimal(str(magnitude))


@cache
def _registry() -> Any:
    import pint

    return pint.UnitRegistry(non_int_type=Decimal)
