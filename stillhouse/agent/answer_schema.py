"""Validation of answers against a JSON schema, whether or not the endpoint enforces it.

The schema is sent with every request; many endpoints ignore it, and a completion may be cut short. So each answer is
validated here, and the model is told what is wrong with it.
"""

from typing import Any, Final

import orjson
from jsonschema import SchemaError
from jsonschema.exceptions import ValidationError, best_match
from jsonschema.validators import validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from stillhouse.agent.json_values import value_alone
from stillhouse.chat.content import REASONING_KEYS, reasoning_of, text_of
from stillhouse.errors import ConfigError
from stillhouse.store import exact_json
from stillhouse.types import JsonObject, Message

_MAX_PROBLEMS: Final = 5
_REASONING: Final = frozenset({*REASONING_KEYS, "sent_back"})
_MAX_SHOWN: Final = 200


class AnswerSchema:
    """Validator of the final answer by a JSON schema of the draft that `$schema` names, 2020-12 without it.

    Raises ConfigError if it is no JSON schema, or refers to something outside of it.
    """

    def __init__(self, schema: JsonObject) -> None:
        self._schema = schema
        validator_class: Any = validator_for(schema)
        try:
            validator_class.check_schema(schema)
        except SchemaError as error:
            raise ConfigError(
                f"rollouts.response_schema is no JSON schema: at {error.json_path}: {error.message}"
            ) from error
        _check_references(schema)
        # The default registry would fetch remote references from the network.
        self._validator = validator_class(schema, registry=Registry())

    def problem(self, answer: Message) -> str | None:
        """Return what is wrong with a message, in words for the model; None where it meets the schema.

        Each violation names the place as a JSON path, the value seen there, and what was expected.
        """
        text = text_of(answer)
        if not text or text.isspace():
            refusal = answer.get("refusal")
            return f"there is no answer but a refusal: {_shown(refusal)}" if refusal else "the answer is empty"
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            return f"the answer is not JSON alone: {error}; it begins with {_shown(text[:60])}, expected a JSON value"
        if value_alone(text) is None:
            return f"the answer has two values under one key; it begins with {_shown(text[:60])}, expected one"
        try:
            errors = sorted(self._validator.iter_errors(value), key=lambda error: error.json_path)
        except RecursionError:
            return "the answer is nested too deeply to be checked"
        if not errors:
            return None
        more = [f"and {len(errors) - _MAX_PROBLEMS} more"] if len(errors) > _MAX_PROBLEMS else []
        return "; ".join([*map(_described, errors[:_MAX_PROBLEMS]), *more])

    def bare(self, answer: Message) -> Message:
        """Return the message as its row should hold it: with the JSON value alone, if a fence is all that is wrong with
        it.

        An answer that the endpoint took for reasoning, as vLLM may with a schema, becomes the content. A message that
        would still miss the schema, or calls tools, comes back as it is.
        """
        text = text_of(answer)
        source = text if text.strip() else reasoning_of(answer)
        written = None if answer.get("tool_calls") else value_alone(source)
        if written is None or written.text == text.strip():
            return answer
        bare: Any = {key: value for key, value in answer.items() if source is text or key not in _REASONING}
        bare["content"] = written.text
        return answer if self.problem(bare) else bare

    def correction(self, problem: str) -> Message:
        """Return the user's message that asks for a corrected answer."""
        schema = orjson.dumps(self._schema).decode()
        content = (
            f"Your answer does not meet the required JSON schema: {problem}. Answer again with the corrected JSON "
            f"value alone, without a code fence and without other text. The schema: {schema}"
        )
        return {"role": "user", "content": content}


def _described(error: ValidationError) -> str:
    """Describe one violation; of a choice of schemas (`anyOf`) the closest one's."""
    closest = best_match([error]) or error
    expected = {str(closest.validator): closest.validator_value}
    if isinstance(closest.instance, list | dict):
        # The value may be the whole answer; the message says what is wrong with it.
        return f"at {closest.json_path}: {_cut(closest.message)}, expected {_shown(expected)}"
    return f"at {closest.json_path}: saw {_shown(closest.instance)}, expected {_shown(expected)}"


def _shown(value: Any) -> str:
    return _cut(exact_json.dumps(value).decode())


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


def _check_references(schema: JsonObject) -> None:
    resolver = Registry().with_resource("", DRAFT202012.create_resource(schema)).resolver()
    pending: list[Any] = [schema]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            pending += value.values()
            reference = value.get("$ref")
            try:
                if isinstance(reference, str):
                    resolver.lookup(reference)
            except Unresolvable as error:
                raise ConfigError(
                    f"rollouts.response_schema refers to {reference!r}, which is not in it; name a place within the "
                    'schema, such as "#/$defs/NAME"'
                ) from error
        elif isinstance(value, list):
            pending += value
