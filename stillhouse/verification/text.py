"""Answers compared as text: `exact`, `normalised`, `contains` and `regex`."""

import re
import unicodedata
from functools import lru_cache
from typing import Any, Final

from stillhouse.types import PromptMetadata
from stillhouse.verification.answers import bare, expected_answer, read_answer
from stillhouse.verification.result import VerificationResult, expected_text

_AROUND: Final = "\"'`*_"
_ASCII: Final = str.maketrans(
    dict.fromkeys("\u2018\u2019\u201a\u201b\u2032", "'")
    | dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb", '"')
    | dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-")
    | {chr(code + 0xFEE0): chr(code) for code in range(0x21, 0x7F)}
    | {"\u3000": " ", "\u3001": ",", "\u3002": "."}
)
_TIMEOUT_S: Final = 1.0
"""Limit of one search; a pattern without nested repeats needs less than a millisecond."""


def exact(answer: str, metadata: PromptMetadata) -> VerificationResult:
    """Return right if the answer is exactly the expected one."""
    expected = expected_text(metadata).strip()
    text = read_answer(answer).text.strip()
    return VerificationResult(answer.strip() == expected or text == expected_answer(expected).strip(), compared=text)


def normalised(answer: str, metadata: PromptMetadata) -> VerificationResult:
    """Return right as `exact`, ignoring what `normalised_text` leaves out."""
    expected = expected_text(metadata)
    text = bare(read_answer(answer).text)
    is_same = normalised_text(text) == _expected(expected) or normalised_text(answer) == normalised_text(expected)
    return VerificationResult(is_same, compared=text)


def contains(answer: str, metadata: PromptMetadata) -> VerificationResult:
    """Return right if the expected answer occurs in the answer as whole words or numbers: `4` is not in `14` or `2.4`.

    It is unverified if the expected answer occurs only before the place where the final answer is stated.
    """
    wanted = whole_words(_expected(expected_text(metadata)))
    read = read_answer(answer)
    if wanted.search(normalised_text(answer[read.start :])):
        return VerificationResult(True, compared=read.text)
    if read.start and wanted.search(normalised_text(answer)):
        return VerificationResult(None, "the expected answer occurs only before the final answer", read.text)
    return VerificationResult(False, compared=read.text)


def normalised_text(text: str) -> str:
    """Return `text` casefolded, with ASCII quotes and single spaces, without outer quotes, emphasis and full stop."""
    if not text.isascii():
        text = plain(unicodedata.normalize("NFKC", text))
    folded = " ".join(text.casefold().split())
    return folded.strip(_AROUND).removesuffix(".").strip(_AROUND + " ")


def plain(text: str) -> str:
    """Return `text` with ASCII quotes, dashes and minus signs, and ASCII for full-width characters, one for one."""
    return text if text.isascii() else text.translate(_ASCII)


@lru_cache(maxsize=1024)
def _expected(text: str) -> str:
    return normalised_text(expected_answer(text))


@lru_cache(maxsize=1024)
def whole_words(text: str) -> re.Pattern[str]:
    before = r"(?<!\d[.,])(?<![^\w]-)(?<!^-)" if text[:1].isdigit() else ""
    after = r"(?![.,/]\d)" if text[-1:].isdigit() else ""
    return re.compile(rf"(?<!\w){before}{re.escape(text)}(?!\w){after}")


def pattern(answer: str, metadata: PromptMetadata) -> VerificationResult:
    """Return right if the expected answer, a pattern of the package `regex`, is found in the answer.

    `^` and `$` match the ends of the answer; flags are part of the pattern, as in `(?i)paris`. As in `contains`, what
    is found only before the final answer is unverified.
    """
    import regex  # type: ignore[import-untyped]

    expected = expected_text(metadata)
    try:
        compiled = _compiled(expected)
    except regex.error as error:
        return VerificationResult(None, f"the expected answer is no regular expression: {error}")
    read = read_answer(answer)
    try:
        found = compiled.search(answer, timeout=_TIMEOUT_S)
        if found and found.end() <= read.start and not compiled.search(answer, read.start, timeout=_TIMEOUT_S):
            return VerificationResult(None, "the pattern is found only before the final answer", read.text)
    except TimeoutError:
        return VerificationResult(None, f"the search for {expected[:80]!r} takes more than {_TIMEOUT_S:g} s")
    return VerificationResult(found is not None, compared=found[0] if found else read.text)


@lru_cache(maxsize=1024)
def _compiled(text: str) -> Any:
    import regex

    return regex.compile(text)
