"""The process that compares formulas. It holds sympy, and never more than `_MAX_MEMORY_BYTES` beyond that."""

import logging
import re
from typing import Any, Final

from stillhouse.processes.worker_pool import limit_memory_growth, serve_requests
from stillhouse.types import JsonObject

_MAX_MEMORY_BYTES: Final = 1 << 30
_FUNCTIONS: Final = re.compile(r"(?<![\\A-Za-z])(sin|cos|tan|log|ln|exp|pi|infty|cdot)(?![A-Za-z])")
_ROOT: Final = re.compile(r"(?<![\\A-Za-z])sqrt\s*\(([^()]*)\)")
# Words of a language, more than one line, or a formula with its own delimiters: no bare formula.
_PROSE: Final = re.compile(
    r"\n|\$|(?<![\\A-Za-z])(?!sqrt|infty|cdot)[A-Za-z]{4,}|\b(?:is|so|the|and|of)\b", re.IGNORECASE
)
_DELIMITED: Final = re.compile(r"\$|\\\(|\\\[|\\boxed")


def compare(question: JsonObject) -> JsonObject:
    """Whether `answer`, of which `stated` is marked as the answer, equals `expected`; `verified` is None where that
    is no mathematics.
    """
    from math_verify import verify

    expected = _parsed(_delimited(question["expected"]))
    if all(isinstance(reading, str) for reading in expected):
        return {"verified": None}
    answer, stated = question["answer"], question["stated"]
    # Of several boxes math-verify makes a set, as of `\boxed{1}` and `\boxed{2}`.
    readings = [answer if stated is None or "\\boxed" in answer else _delimited(stated)]
    if stated is None and not _PROSE.search(answer):
        readings.append(_delimited(answer))
    # Its own time limits are alarms; the process that asks keeps the time.
    return {"verified": any(verify(expected, _parsed(text), timeout_seconds=None) for text in readings)}


def _parsed(text: str) -> list[Any]:
    from math_verify import parse

    readings: list[Any] = parse(text, parsing_timeout=None)
    return readings


def _delimited(text: str) -> str:
    """A text that is a formula, written as one: math-verify would take the first number out of a bare `2x + 3`."""
    if _DELIMITED.search(text):
        return text
    latex = _ROOT.sub(r"\\sqrt{\1}", text.strip().rstrip(".")).replace("**", "^")
    return "$" + _FUNCTIONS.sub(r"\\\1", latex) + "$"


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    _parsed("$1$")
    limit_memory_growth(_MAX_MEMORY_BYTES)
    serve_requests(compare)
