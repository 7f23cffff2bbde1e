"""JSON values in an answer, wherever the model put them: alone, in a code fence, or among prose."""

import json
import re
from contextlib import suppress
from typing import Any, Final, NamedTuple, NoReturn

_OPENING: Final = re.compile(r"[\[{]")
_BEGUN: Final = re.compile(r'[\[{]\s*"')
_FENCE: Final = re.compile(r"\s*```[ \t]*\w*\s*```\s*")
_MAX_STARTS: Final = 100
"""Most brackets in prose tried as the start of a value."""


def _refused(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if any(members[key] != value for key, value in pairs):
        raise ValueError("a key has two values")
    return members


_DECODER: Final = json.JSONDecoder(strict=False, parse_constant=_refused, object_pairs_hook=_unambiguous)


class Written(NamedTuple):
    """A JSON value, and the text that it was written as."""

    value: Any
    text: str


def values_in(text: str, decoder: json.JSONDecoder = _DECODER) -> list[Written]:
    """Return the outermost values of a text in order: the one that it is, else the objects and lists in its prose.

    A line break inside a string is taken as meant. Where an object is broken, holds NaN, or says two things under one
    key, there are no values: what stands inside could be a quotation.
    """
    bare = text.strip()
    with suppress(ValueError, RecursionError):
        return [Written(decoder.decode(bare), bare)]
    found: list[Written] = []
    position = 0
    for _ in range(_MAX_STARTS):
        opening = _OPENING.search(text, position)
        if opening is None:
            break
        try:
            value, position = decoder.raw_decode(text, opening.start())
        except (ValueError, RecursionError):
            if _BEGUN.match(text, opening.start()):
                return []
            position = opening.end()
        else:
            found.append(Written(value, text[opening.start() : position]))
    return found


def value_alone(text: str) -> Written | None:
    """Return the value that a text is, but for a code fence around it; None if there is anything else."""
    found = values_in(text)
    if len(found) != 1 or (found[0].text != text.strip() and not _FENCE.fullmatch(text.replace(found[0].text, "", 1))):
        return None
    return found[0]
