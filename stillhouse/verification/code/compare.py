"""Output and results of a program, compared with what it should have."""

import math
from typing import Any, Final

_RELATIVE: Final = 1e-6
_ABSOLUTE: Final = 1e-9


def same_output(actual: str, expected: str) -> bool:
    """Return whether outputs are equal line by line, but for white space and the last digits of decimal numbers."""
    ours, theirs = ([line.split() for line in text.strip().splitlines()] for text in (actual, expected))
    return list(map(len, ours)) == list(map(len, theirs)) and all(
        _same_word(*words) for lines in zip(ours, theirs, strict=True) for words in zip(*lines, strict=True)
    )


def same_value(actual: Any, expected: Any) -> bool:
    """Return whether two values of JSON are equal, but for the last digits of decimal numbers.

    The value may also be expected within a list of one, as APPS (https://arxiv.org/abs/2105.09938) writes it.
    """
    return _same(actual, expected) or (isinstance(expected, list) and len(expected) == 1 and _same(actual, expected[0]))


def _same(actual: Any, expected: Any) -> bool:
    if isinstance(actual, list) and isinstance(expected, list):
        return len(actual) == len(expected) and all(map(_same, actual, expected))
    if isinstance(actual, dict) and isinstance(expected, dict):
        return actual.keys() == expected.keys() and all(_same(actual[key], expected[key]) for key in actual)
    if isinstance(actual, float) or isinstance(expected, float):
        both = isinstance(actual, int | float) and isinstance(expected, int | float)
        return both and math.isclose(actual, expected, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)
    return bool(actual == expected)


def _same_word(actual: str, expected: str) -> bool:
    if actual == expected or "." not in actual + expected:
        return actual == expected
    try:
        return math.isclose(float(actual), float(expected), rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)
    except ValueError:
        return False
