"""Answers compared as text: `exact`, `normalised`, `contains` and `regex`."""

import re
import unicodedata
from functools import lru_cache
from typing import Any, Final

from stillhouse.types import PromptMetadata
from stillhouse.verification.answers import whole_answers
from stillhouse.verification.result import VerificationResult, expected_text

_QUOTES: Final = "\"'`"
_TIMEOUT_S: Final = 1.0
"""Limit of one search; a pattern without nested repeats needs less than a millisecond."""


def exact(answer: str, metadata: PromptMetadata) -> VerificationResult:
    """Right if the answer, or its marked part, is exactly the expected one."""
    expected = expected_text(metadata).strip()
    return VerificationResult(any(reading.strip() == expected for reading in whole_answers(answer)))


def normalised(answer: str, metadata: PromptMetadata) -> VerificationResult:
    """As `exact`, ignoring compatibility forms, case, white space, outer quotes and a final full stop."""
    expected = normalised_text(expected_text(metadata))
    return VerificationResult(any(normalised_text(reading) == expected for reading in whole_answers(answer)))


def contains(answer: str, metadata: PromptMetadata) -> VerificationResult:
    """Right if the expected answer occurs in the answer as whole words: `4` is not in `14`."""
    return VerificationResult(_whole_words(expected_text(metadata)).search(normalised_text(answer)) is not None)


def normalised_text(text: str) -> str:
    """`text` without compatibility forms, case, runs of white space, outer quotes and a final full stop."""
    folded = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return folded.strip(_QUOTES).removesuffix(".").strip(_QUOTES + " ")


@lru_cache(maxsize=1024)
def _whole_words(text: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(normalised_text(text))}(?!\w)")


def pattern(answer: str, metadata: PromptMetadata) -> VerificationResult:
    """Right if the expected answer, a pattern of the package `regex`, is found in the answer.

    `^` and `$` match the ends of the answer; flags are part of the pattern, as in `(?i)paris`.
    """
    import regex  # type: ignore[import-untyped]

    expected = expected_text(metadata)
    try:
        compiled = _compiled(expected)
    except regex.error as error:
        return VerificationResult(None, f"the expected answer is no regular expression: {error}")
    try:
        return VerificationResult(compiled.search(answer, timeout=_TIMEOUT_S) is not None)
    except TimeoutError:
        return VerificationResult(None, f"the search for {expected[:80]!r} takes more than {_TIMEOUT_S:g} s")


@lru_cache(maxsize=1024)
def _compiled(text: str) -> Any:
    import regex

    return regex.compile(text)
