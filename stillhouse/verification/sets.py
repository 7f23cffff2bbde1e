"""Answers of several elements: `list`, and `set`, which ignores order and repeats."""

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final

import orjson

from stillhouse.types import PromptMetadata
from stillhouse.verification.answers import expected_answer, read_answer
from stillhouse.verification.numbers import NUMBER, Number, number_alone, number_of, plain_numbers, same_number
from stillhouse.verification.result import VerificationResult, expected_text
from stillhouse.verification.text import normalised_text, plain

_Element = str | Number
_BRACKETS: Final = {"[": "]", "(": ")", "{": "}"}
_AND: Final = re.compile(r"(?:[,;]\s*)?(?:\b(?:and|und|et|y|e)\b|&)\s+", re.IGNORECASE)
_BULLET: Final = re.compile(r"^[ \t]*(?:[-*\u2022]|\d{1,3}[.)])[ \t]+(\S[^\n]*)$", re.MULTILINE)
_JSON_LIST: Final = re.compile(r"(\[[^\[\]]*\])\W*\Z")


def list_(answer: str, metadata: PromptMetadata) -> VerificationResult:
    """Return right if the answer has the expected elements in the expected order.

    The expected answer is a JSON list, or text separated by semicolons, lines, or commas. Elements are compared as
    numbers if both are, else as by `normalised`. The final answer may give them in any of these forms, as bullets or
    after a colon; it is right if one of these readings is.
    """
    return _compare(
        answer, metadata, lambda actual, given: len(actual) == len(given) and all(map(_same, actual, given))
    )


def set_(answer: str, metadata: PromptMetadata) -> VerificationResult:
    """Return right as `list_`, ignoring order and repeats."""
    return _compare(answer, metadata, lambda actual, expected: _within(actual, expected) and _within(expected, actual))


def _compare(
    answer: str, metadata: PromptMetadata, is_same: Callable[[list[_Element], list[_Element]], bool]
) -> VerificationResult:
    expected = _expected(expected_text(metadata))
    if not expected:
        return VerificationResult(None, "the expected answer holds no elements")
    text = read_answer(answer).text
    return VerificationResult(any(is_same(reading, expected) for reading in _readings(text, expected)), compared=text)


def _within(elements: list[_Element], others: list[_Element]) -> bool:
    known = set(others)
    return all(element in known or any(_same(element, other) for other in others) for element in elements)


def _same(actual: _Element, expected: _Element) -> bool:
    if isinstance(actual, Number) and isinstance(expected, Number):
        return same_number(actual, expected)
    return actual == expected


@lru_cache(maxsize=1024)
def _expected(text: str) -> list[_Element]:
    text = expected_answer(text)
    values = _json_list(text)
    return _elements(_split(text) if values is None else values)


def _readings(text: str, expected: list[_Element]) -> Iterator[list[_Element]]:
    json_list = _json_list(text)
    if json_list is not None:
        yield _elements(json_list)
    if written := _JSON_LIST.search(text):
        yield _elements(_json_list(written[1]) or _split(written[1]))
    bullets = _BULLET.findall(text)
    if bullets:
        yield _elements(bullets)
    last_line = text.rstrip().rpartition("\n")[2]
    for part in (text, last_line.rpartition(":")[2], last_line.rpartition(" are ")[2]):
        yield _elements(_split(part))
        yield _elements(_split(_AND.sub(", ", part)))
    if all(isinstance(element, Number) for element in expected):
        plain_line = plain_numbers(last_line)
        yield [number for match in NUMBER.finditer(plain_line) if (number := number_of(match))]


def _json_list(text: str) -> list[Any] | None:
    text = text.strip()
    if not text.startswith("["):
        return None
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, list) else None


def _split(text: str) -> list[str]:
    """Return the parts of a text between its semicolons, else its lines, else its commas."""
    text = plain(text).strip().removesuffix(".").replace("\\{", "{").replace("\\}", "}").strip("$ ")
    if text and _BRACKETS.get(text[0]) == text[-1]:
        text = text[1:-1]
    for separator in (";", "\n"):
        if separator in text.strip():
            return text.split(separator)
    # Not between thousands: `1,000, 2,000`.
    return text.split(", " if ", " in text else ",")


def _elements(values: list[Any]) -> list[_Element]:
    return [element for element in map(_element, values) if element != ""]


def _element(value: Any) -> _Element:
    if isinstance(value, bool) or value is None:
        return "true" if value else "false" if value is False else "null"
    if isinstance(value, dict | list):
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    text = str(value).strip().strip("*_$")
    return number_alone(text) or normalised_text(text)
