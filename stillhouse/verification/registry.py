"""Which function each name of `config.Verifier` stands for."""

from typing import Final

from stillhouse.verification.choice import choice
from stillhouse.verification.code.check import python
from stillhouse.verification.finding import Check
from stillhouse.verification.json_value import json_value
from stillhouse.verification.mathematics import mathematics
from stillhouse.verification.numeric import numeric
from stillhouse.verification.pattern import pattern
from stillhouse.verification.sets import list_, set_
from stillhouse.verification.text import contains, exact, normalised

JUDGE: Final = "judge"
"""The verifier that is no function: a language model decides, elsewhere."""

VERIFIERS: Final[dict[str, Check]] = {
    "exact": exact,
    "normalised": normalised,
    "contains": contains,
    "numeric": numeric,
    "math": mathematics,
    "choice": choice,
    "set": set_,
    "list": list_,
    "regex": pattern,
    "json": json_value,
    "python": python,
}

STANDS_IN: Final = {"json": "answer_schema", "python": "test_cases"}
"""Keys of the metadata that a verifier can do with instead of an expected answer."""
