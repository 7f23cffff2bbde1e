r"""Answers compared as mathematics: `math`. Numbers are compared here, formulas by sympy in a process of its own."""

import re
from collections import deque
from typing import Final

from stillhouse.processes.worker_pool import WorkerFailed, WorkerPool, WorkerTimeout
from stillhouse.types import PromptMetadata
from stillhouse.verification.answers import bare, expected_answer, read_answer
from stillhouse.verification.formulas import spelled
from stillhouse.verification.numbers import NUMBER, is_one_number, number_alone, plain_numbers, same_share
from stillhouse.verification.numeric import IN_WORDS
from stillhouse.verification.result import VerificationResult, expected_text
from stillhouse.verification.text import normalised_text, plain

TIMEOUT_S: Final = 10.0
"""Seconds one comparison may take. Most take a few milliseconds."""

_WORKERS: Final = WorkerPool("stillhouse.verification.math_worker")
_FORMULA: Final = re.compile(r"\$\$?([^$]+)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_JOINED: Final = re.compile(rf"(?:{_FORMULA.pattern})(?:\s*(?:,|,?\s*(?:and|or))\s*(?:{_FORMULA.pattern}))*", re.DOTALL)
# Words of a language, or more than one line: no bare formula.
_PROSE: Final = re.compile(
    r"\n|(?<![\\A-Za-z])(?!sqrt|infty|cdot|frac|pmod|arc|sinh|cosh|tanh)[A-Za-z]{4,}|\b(?:is|so|the|and|of)\b",
    re.IGNORECASE,
)
_LETTER: Final = re.compile(r"(?<![\\A-Za-z])[A-Za-z]")
_WORDS: Final = re.compile(r"(?=.*[^\W\d_]{3})[^\W\d_](?:[^\W\d_]|[ -])+")
_UNIT: Final = re.compile(
    r"(?<=[\w}) ])\s*(?:\\(?:text|mathrm|textrm|mbox|rm)\s*\{\s*([^{}]*)\}(?:\^\{?\d\}?)?"
    r"|(?<=\d)\s+([A-Za-z]{2,}[\w./^ ]*|[mgshLK]))\Z"
)


def mathematics(answer: str, metadata: PromptMetadata) -> VerificationResult:
    r"""Return right if the answer is mathematically equal to the expected one: `\frac12`, `1/2`, `0.5`.

    Of prose the last formula counts, else the last number. Units are ignored unless both answers have one. Whole
    numbers, fractions, powers, roots and numbers of one base are compared exactly, decimals as by `same_number`. What
    is not understood is unverified unless the texts are equal, as is an answer that takes more than `TIMEOUT_S`.
    """
    expected, text = (bare(part) for part in (expected_answer(expected_text(metadata)), read_answer(answer).text))
    compared = _formula(text)
    sides = compared.rpartition("=")
    if sides[1] and "=" not in expected and not _LETTER.search(sides[0]):
        # A calculation.
        compared = sides[2].strip()
    is_worded = _WORDS.fullmatch(expected) is not None
    same_words = is_worded and normalised_text(text) == normalised_text(expected)
    if compared == expected or same_words or _unspaced(compared) == _unspaced(expected):
        return VerificationResult(True, compared=compared)
    if not re.search(r"[\d\\=+^]", compared) and _PROSE.search(compared):
        return VerificationResult(None if IN_WORDS.search(compared) else False, "the answer holds no formula", compared)
    if is_worded and _WORDS.fullmatch(compared):
        return VerificationResult(False, compared=compared)
    verified, note = _compared(_formula(expected), compared)
    return VerificationResult(verified, note, compared)


def _compared(expected: str, answer: str) -> tuple[bool | None, str | None]:
    (expected, expected_unit), (answer, unit) = _without_unit(expected), _without_unit(answer)
    if unit and expected_unit and unit != expected_unit:
        return None, f"the units {unit} and {expected_unit} are not compared"
    numbers = number_alone(answer), number_alone(expected)
    if numbers[0] and numbers[1]:
        return same_share(numbers[0], numbers[1]), None
    try:
        reply = _WORKERS.request({"expected": expected, "answer": answer}, TIMEOUT_S)
    except WorkerTimeout:
        return None, f"the comparison takes more than {TIMEOUT_S:g} s"
    except WorkerFailed as error:
        return None, str(error)
    return reply["verified"], reply["note"]


def _formula(text: str) -> str:
    """Return the last formula of a text, with those that it is joined to, else its last number, else the text."""
    text = plain(text).strip()
    for joined in deque(_JOINED.finditer(text), maxlen=1):
        formulas = (formula[formula.lastindex or 0] for formula in _FORMULA.finditer(joined[0]))
        return ", ".join(formula.strip().rstrip(".") for formula in formulas)
    if _PROSE.search(text) and not _UNIT.search(text):
        line = next((line for line in reversed(plain_numbers(text).splitlines()) if NUMBER.search(line)), "")
        for number in list(NUMBER.finditer(line))[-1:]:
            return number[0] if is_one_number(line, number) else line
    return text.rstrip(".")


def _without_unit(text: str) -> tuple[str, str | None]:
    text = text.strip().removeprefix("\\$").removeprefix("$").rstrip()
    if not re.search(r"sin|cos|tan|cot", text):
        text = re.sub(r"(?<![a-z])\s*(?:\^\s*\{?\s*\\circ\s*\}?|\u00b0)\s*\Z", "", text)
    unit = _UNIT.search(text)
    if unit is None or not unit.start():
        return text, None
    return text[: unit.start()], normalised_text(unit[1] or unit[2] or "")


def _unspaced(text: str) -> str:
    return re.sub(r"(?<!,)\s", "", spelled(text))
