"""Answers compared as text: `exact`, `normalised` and `contains`."""

import re
import unicodedata
from functools import lru_cache
from typing import Final

from stillhouse.types import PromptMetadata
from stillhouse.verification.answers import whole_answers
from stillhouse.verification.finding import Finding, expected_text

_QUOTES: Final = "\"'`"


def exact(answer: str, metadata: PromptMetadata) -> Finding:
    """Right where the answer, or the part it marks as such, is the expected one to the letter."""
    expected = expected_text(metadata).strip()
    return Finding(any(reading.strip() == expected for reading in whole_answers(answer)))


def normalised(answer: str, metadata: PromptMetadata) -> Finding:
    """As `exact`, but compatibility forms, case, runs of white space, outer quotes and a full stop do not count."""
    expected = _normalised_expected(expected_text(metadata))
    return Finding(any(normalised_text(reading) == expected for reading in whole_answers(answer)))


def contains(answer: str, metadata: PromptMetadata) -> Finding:
    """Right where the expected answer occurs in the answer as whole words: a `4` is not in `14`."""
    return Finding(_whole_words(expected_text(metadata)).search(normalised_text(answer)) is not None)


def normalised_text(text: str) -> str:
    """Compatibility forms, case, runs of white space, outer quotes and a closing full stop removed."""
    folded = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return folded.strip(_QUOTES).removesuffix(".").strip(_QUOTES + " ")


@lru_cache(maxsize=1024)
def _normalised_expected(text: str) -> str:
    return normalised_text(text)


@lru_cache(maxsize=1024)
def _whole_words(text: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(normalised_text(text))}(?!\w)")
