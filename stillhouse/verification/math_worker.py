"""The worker process that compares formulas with sympy."""

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


def compare(request: JsonObject) -> JsonObject:
    """Whether `answer`, or its marked part `stated`, equals `expected`; None if that is not mathematics."""
    from math_verify import verify

    expected = _parsed(_delimited(request["expected"]))
    if all(isinstance(reading, str) for reading in expected):
        return {"verified": None}
    answer, stated = request["answer"], request["stated"]
    # math-verify makes a set of several boxes.
    readings = [answer if stated is None or "\\boxed" in answer else _delimited(stated)]
    if stated is None and not _PROSE.search(answer):
        readings.append(_delimited(answer))
    # math-verify's time limits are alarms; the pool limits the time instead.
    return {"verified": any(verify(expected, _parsed(text), timeout_seconds=None) for text in readings)}


def _parsed(text: str) -> list[Any]:
    from math_verify import parse

    readings: list[Any] = parse(text, parsing_timeout=None)
    return readings


def _delimited(text: str) -> str:
    """The text with formula delimiters: math-verify would extract the first number of a bare `2x + 3`."""
    if _DELIMITED.search(text):
        return text
    latex = _ROOT.sub(r"\\sqrt{\1}", text.strip().rstrip(".")).replace("**", "^")
    return "$" + _FUNCTIONS.sub(r"\\\1", latex) + "$"


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    _parsed("$1$")
    limit_memory_growth(_MAX_MEMORY_BYTES)
    serve_requests(compare)
