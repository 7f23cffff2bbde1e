"""What a program printed or returned, compared with what it should have."""

import math
from typing import Any, Final

_RELATIVE: Final = 1e-6
_ABSOLUTE: Final = 1e-9


def same_output(seen: str, expected: str) -> bool:
    """Whether two outputs are equal line by line, but for spaces between words, blank lines at the ends, and the last
    digits of decimal numbers.
    """
    ours, theirs = (text.strip().splitlines() for text in (seen, expected))
    return len(ours) == len(theirs) and all(map(_same_line, ours, theirs))


def same_value(seen: Any, expected: Any) -> bool:
    """Whether two values of JSON are equal, but for the last digits of decimal numbers.

    The value may also be expected within a list of one, as APPS (https://arxiv.org/abs/2105.09938) writes it.
    """
    return _same(seen, expected) or (isinstance(expected, list) and len(expected) == 1 and _same(seen, expected[0]))


def _same(seen: Any, expected: Any) -> bool:
    if isinstance(seen, list) and isinstance(expected, list):
        return len(seen) == len(expected) and all(map(_same, seen, expected))
    if isinstance(seen, dict) and isinstance(expected, dict):
        return seen.keys() == expected.keys() and all(_same(seen[key], expected[key]) for key in seen)
    if isinstance(seen, float) or isinstance(expected, float):
        both = isinstance(seen, int | float) and isinstance(expected, int | float)
        return both and math.isclose(seen, expected, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)
    return bool(seen == expected)


def _same_line(seen: str, expected: str) -> bool:
    if seen == expected:
        return True
    ours, theirs = seen.split(), expected.split()
    return len(ours) == len(theirs) and all(map(_same_word, ours, theirs))


def _same_word(seen: str, expected: str) -> bool:
    if seen == expected:
        return True
    if "." not in seen + expected:
        return False
    try:
        return math.isclose(float(seen), float(expected), rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)
    except ValueError:
        return False
