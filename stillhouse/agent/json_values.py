"""JSON values in an answer, wherever the model put them: alone, in a code fence, or among prose."""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple, NoReturn

_OPENING: Final = re.compile(r"[\[{]")
_BEGUN: Final = re.compile(r'[\[{]\s*"')
_FENCED: Final = re.compile(r"\s*```[ \t]*\w*(.*)```\s*", re.DOTALL)
_MAX_STARTS: Final = 100
"""Most brackets in prose tried as the start of a value."""


class Written(NamedTuple):
    """A JSON value, and the text that it was written as."""

    value: Any
    text: str


def json_decoder(number: Callable[[str], Any] | None = None) -> json.JSONDecoder:
    """Return a decoder that makes `number` of numbers, and refuses NaN and objects that say two things under one key.

    A line break inside a string is taken as meant.
    """
    numbers: Any = {"parse_float": number, "parse_int": number, "parse_constant": _refused}
    return json.JSONDecoder(**numbers, strict=False, object_pairs_hook=_unambiguous)


def _refused(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if any(members[key] != value for key, value in pairs):
        raise ValueError("a key has two values")
    return members


_PLAIN: Final = json_decoder()


def value_alone(text: str, decoder: json.JSONDecoder = _PLAIN) -> Written | None:
    """Return the value that a text is, but for a code fence around it; None if there is anything else."""
    fenced = _FENCED.fullmatch(text)
    bare = (fenced[1] if fenced else text).strip()
    with suppress(ValueError, ArithmeticError, RecursionError):
        return Written(decoder.decode(bare), bare)
    return None


def values_in(text: str, decoder: json.JSONDecoder = _PLAIN) -> list[Written]:
    """Return the outermost values of a text in order: the one that it is, else the objects and lists in its prose.

    Where an object is broken there are none: what stands inside could be a quotation.
    """
    if alone := value_alone(text, decoder):
        return [alone]
    found: list[Written] = []
    position = 0
    for _ in range(_MAX_STARTS):
        opening = _OPENING.search(text, position)
        if opening is None:
            break
        try:
            value, position = decoder.raw_decode(text, opening.start())
        except (ValueError, ArithmeticError, RecursionError):
            if _BEGUN.match(text, opening.start()):
                return []
            position = opening.end()
        else:
            found.append(Written(value, text[opening.start() : position]))
    return found
