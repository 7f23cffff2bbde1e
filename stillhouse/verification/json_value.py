"""Answers compared as JSON values: `json`."""

import json
import re
from contextlib import suppress
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

from stillhouse.types import PromptMetadata
from stillhouse.verification.answers import read_answer
from stillhouse.verification.result import VerificationResult

_FENCED: Final = re.compile(r"```[ \t]*\w*[ \t]*\n(.*?)```", re.DOTALL)
_OPENING: Final = re.compile(r"[\[{]")
_MAX_STARTS: Final = 100
"""Most brackets in prose tried as the start of a JSON value."""
_MAX_DIGITS: Final = 400
"""Most digits of an integer for a schema; longer ones become floats."""


def json_value(answer: str, metadata: PromptMetadata) -> VerificationResult:
    """Return right if the JSON in the answer equals the expected answer and satisfies `metadata["answer_schema"]`.

    The prompt may have only one of the two. The answer is JSON alone, or has it as its final answer, in a fenced block,
    or in prose; the last value in the first of these places counts. The order of keys and the form of numbers (`1`,
    `1.0`, `1e0`) do not matter, the order of lists does.
    """
    expected: Any = None
    if metadata.expected_answer is not None:
        try:
            expected, _ = _answered(metadata.expected_answer, prose=False)
        except ValueError as error:
            return VerificationResult(None, f"the expected answer is no JSON: {error}")
    try:
        actual, text = _answered(answer)
    except ValueError as error:
        return VerificationResult(False, str(error), read_answer(answer).text)
    if metadata.expected_answer is not None and not _equal(actual, expected):
        return VerificationResult(False, compared=text)
    schema = metadata.metadata.get("answer_schema")
    result = VerificationResult(True) if schema is None else _meets(actual, schema)
    return result._replace(compared=text)


def _answered(answer: str, *, prose: bool = True) -> tuple[Any, str]:
    """Return the JSON value of an answer and its text; raises ValueError if there is none."""
    read = read_answer(answer)
    # A key `answer` is part of the value.
    marked = [read.text] if read.kind in ("mark", "said") else []
    for text in (answer, *marked, *reversed(_FENCED.findall(answer))):
        try:
            return _parsed(text), text
        except ValueError as error:
            problem = error
    if not prose:
        raise problem
    # In prose: the last outermost object or list of the final answer.
    values = []
    prose_text = marked[0] if marked and _OPENING.search(marked[0]) else answer
    position = 0
    for _ in range(_MAX_STARTS):
        opening = _OPENING.search(prose_text, position)
        if opening is None:
            break
        position = opening.end()
        with suppress(ValueError, RecursionError):
            value, position = _DECODER.raw_decode(prose_text, opening.start())
            values.append((value, prose_text[opening.start() : position]))
    if not values:
        raise ValueError("the answer holds no JSON")
    return values[-1]


def _number(text: str) -> Decimal:
    try:
        number = Decimal(text)
    except ArithmeticError:
        raise ValueError(f"{text[:40]} is too large") from None
    if not number.is_finite():
        raise ValueError(f"{text[:40]} is no number of JSON")
    return number


_DECODER: Final = json.JSONDecoder(parse_float=_number, parse_int=_number, parse_constant=_number)


def _parsed(text: str) -> Any:
    """The value of a JSON text, with numbers as `Decimal`; raises ValueError if it is none or nested too deeply."""
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _equal(actual: Any, expected: Any) -> bool:
    if isinstance(actual, dict) and isinstance(expected, dict):
        return actual.keys() == expected.keys() and all(_equal(actual[key], expected[key]) for key in actual)
    if isinstance(actual, list) and isinstance(expected, list):
        return len(actual) == len(expected) and all(map(_equal, actual, expected))
    # In Python True is a number.
    return isinstance(actual, bool) == isinstance(expected, bool) and bool(actual == expected)


def _meets(value: Any, schema: Any) -> VerificationResult:
    """Whether a value satisfies a schema, given as an object or as JSON text."""
    from jsonschema.exceptions import SchemaError
    from referencing.exceptions import Unresolvable

    try:
        validator = _validator(schema if isinstance(schema, str) else json.dumps(schema, sort_keys=True))
        problem = next(validator.iter_errors(_plain(value)), None)
    except (ValueError, SchemaError, Unresolvable) as error:
        return VerificationResult(None, f"metadata.answer_schema cannot be used: {str(error).splitlines()[0]}")
    except RecursionError:
        return VerificationResult(False, "the answer is nested too deeply")
    if problem is not None:
        return VerificationResult(False, f"at {problem.json_path}: {problem.message[:200]}")
    return VerificationResult(True)


@lru_cache(maxsize=256)
def _validator(schema: str) -> Any:
    from jsonschema.validators import validator_for
    from referencing import Registry

    loaded = json.loads(schema)
    kind: Any = validator_for(loaded)
    kind.check_schema(loaded)
    # An empty registry: the default one fetches references from the network.
    return kind(loaded, registry=Registry())


def _plain(value: Any) -> Any:
    """`value` with int and float instead of Decimal, for jsonschema."""
    if isinstance(value, Decimal):
        return int(value) if value.adjusted() < _MAX_DIGITS and value == value.to_integral_value() else float(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
