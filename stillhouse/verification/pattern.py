"""Answers that must match a regular expression: `regex`."""

from functools import lru_cache
from typing import Any, Final

from stillhouse.types import PromptMetadata
from stillhouse.verification.finding import Finding, expected_text

_TIMEOUT_S: Final = 1.0
"""Processor time of one search. A pattern without nested repeats needs less than a millisecond."""


def pattern(answer: str, metadata: PromptMetadata) -> Finding:
    """Right where the expected answer, a pattern of the package `regex`, is found anywhere in the answer.

    `^` and `$` are the ends of the answer; flags are written into the pattern, as in `(?i)paris`.
    """
    import regex  # type: ignore[import-untyped]

    expected = expected_text(metadata)
    try:
        compiled = _compiled(expected)
    except regex.error as error:
        return Finding(None, f"the expected answer is no regular expression: {error}")
    try:
        return Finding(compiled.search(answer, timeout=_TIMEOUT_S) is not None)
    except TimeoutError:
        return Finding(None, f"the search for {expected[:80]!r} takes more than {_TIMEOUT_S:g} s")


@lru_cache(maxsize=1024)
def _compiled(text: str) -> Any:
    import regex

    return regex.compile(text)
