"""Answers compared as JSON values: `json`."""

import json
import re
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

from stillhouse.agent.json_values import Written, json_decoder, value_alone, values_in
from stillhouse.types import PromptMetadata
from stillhouse.verification.answers import read_answer
from stillhouse.verification.result import VerificationResult

_FENCED: Final = re.compile(r"```[ \t]*\w*[ \t]*\n(.*?)```", re.DOTALL)
_DECODER: Final = json_decoder(Decimal)
_MAX_DIGITS: Final = 400
"""Most digits of an integer for a schema; longer ones become floats."""


def json_value(answer: str, metadata: PromptMetadata) -> VerificationResult:
    """Return right if the JSON in the answer equals the expected answer and satisfies `metadata["answer_schema"]`.

    The prompt may have only one of the two. The answer is JSON alone, or has it as its final answer, in a fenced block,
    or in prose; the last value in the first of these places counts. The order of keys and the form of numbers (`1`,
    `1.0`, `1e0`) do not matter, the order of lists does.
    """
    expected: Written | None = None
    if metadata.expected_answer is not None and (expected := _alone(metadata.expected_answer)) is None:
        return VerificationResult(None, "the expected answer is no JSON")
    answered = _alone(answer) or _in_prose(answer)
    if answered is None:
        return VerificationResult(False, "the answer holds no JSON", read_answer(answer).text)
    actual, text = answered
    if expected is not None and not _equal(actual, expected.value):
        return VerificationResult(False, compared=text)
    schema = metadata.metadata.get("answer_schema")
    result = VerificationResult(True) if schema is None else _meets(actual, schema)
    return result._replace(compared=text)


def _alone(answer: str) -> Written | None:
    """Return the JSON that an answer is, states as its final one, or has in its last readable fence."""
    texts = (answer, *_marked(answer), *reversed(_FENCED.findall(answer)))
    return next(filter(None, (value_alone(text, _DECODER) for text in texts)), None)


def _in_prose(answer: str) -> Written | None:
    """Return the last object or list in the prose of an answer."""
    return next((found[-1] for text in (*_marked(answer), answer) if (found := values_in(text, _DECODER))), None)


def _marked(answer: str) -> list[str]:
    read = read_answer(answer)
    # A key `answer` is part of the value.
    return [read.text] if read.kind in ("mark", "said") else []


def _equal(actual: Any, expected: Any) -> bool:
    if isinstance(actual, dict) and isinstance(expected, dict):
        return actual.keys() == expected.keys() and all(_equal(actual[key], expected[key]) for key in actual)
    if isinstance(actual, list) and isinstance(expected, list):
        return len(actual) == len(expected) and all(map(_equal, actual, expected))
    # In Python True is a number.
    return isinstance(actual, bool) == isinstance(expected, bool) and bool(actual == expected)


def _meets(value: Any, schema: Any) -> VerificationResult:
    """Return whether a value satisfies a schema, given as an object or as JSON text."""
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
    """Return `value` with int and float instead of Decimal, for jsonschema."""
    if isinstance(value, Decimal):
        return int(value) if value.adjusted() < _MAX_DIGITS and value == value.to_integral_value() else float(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
