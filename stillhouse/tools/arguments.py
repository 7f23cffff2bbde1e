"""Reads the arguments written by a model against the schema it was shown.

Models write `"3"` for 3, `"true"` for true and a list as a string of JSON. Such values are converted if the schema
takes no string there. Names that are not in the schema are refused, at any depth.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from jsonschema import Draft202012Validator
from jsonschema.exceptions import UnknownType, best_match
from jsonschema.validators import validator_for
from pydantic import BaseModel, ValidationError
from referencing import Registry
from referencing.exceptions import Unresolvable

from stillhouse.types import JsonObject

ReadArguments = Callable[[JsonObject], JsonObject]
"""Converts the object written by the model to keyword arguments; raises `ArgumentsRefused`."""

_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int, float),
    "number": (int, float),
    "array": (list,),
    "object": (dict,),
    "string": (str,),
}
_PYTHON: Final = {"True": "true", "False": "false", "None": "null"}


class ArgumentsRefused(Exception):
    """The arguments do not fit the schema; the message is for the model."""


def reader_of_model(model: type[BaseModel], names: Mapping[str, str], schema: JsonObject) -> ReadArguments:
    """Read arguments by a pydantic model of one field each, in lax mode; `schema` is what the model was shown.

    `names` are those of the arguments by their fields.
    """

    def read(raw_arguments: JsonObject) -> JsonObject:
        try:
            arguments = model.model_validate(converted(raw_arguments, schema, schema))
        except ValidationError as error:
            reasons = [f"{_path(item['loc'])}: {item['msg']}" for item in error.errors()]
            raise ArgumentsRefused("; ".join(reasons)) from error
        # Not model_dump: nested models must reach the function as models.
        return {name: getattr(arguments, field) for field, name in names.items()}

    return read


def reader_of_schema(schema: JsonObject) -> ReadArguments:
    """Read arguments by a foreign JSON schema; they stay JSON, as the keyword argument `arguments`."""
    # An empty registry: a reference to an address on the network must not be followed.
    validator = validator_for(schema, default=Draft202012Validator)(schema, registry=Registry())

    def read(raw_arguments: JsonObject) -> JsonObject:
        arguments = converted(raw_arguments, schema, schema)
        try:
            error = best_match(validator.iter_errors(arguments))
        # A schema we cannot evaluate (a remote reference, an unknown type or dialect): its owner validates.
        except (Unresolvable, UnknownType, re.error, TypeError):
            error = None
        if error is not None:
            raise ArgumentsRefused(f"{_path(error.absolute_path)}: {error.message}")
        return {"arguments": arguments}

    return read


def converted(value: Any, schema: Any, root: JsonObject, path: tuple[str | int, ...] = ()) -> Any:
    """Return the JSON `value` with strings parsed as the type that `schema` requires, if it takes no string.

    References of the schema point into `root`; `path` leads to the value in the arguments. Raise ArgumentsRefused if an
    object has a key that its schema does not allow.
    """
    branches = _branches(schema, root)
    types = {name for branch in branches for name in _types(branch)}
    if isinstance(value, str) and types and "string" not in types:
        value = _read_as(value, types)
    elif isinstance(value, int | float) and not isinstance(value, bool) and types and types <= {"string", "null"}:
        value = json.dumps(value)
    if isinstance(value, list):
        items = (_only(branches, "array") or {}).get("items")
        return [converted(item, items, root, (*path, index)) for index, item in enumerate(value)]
    shape = _only(branches, "object")
    if not isinstance(value, dict) or shape is None:
        return value
    properties = shape.get("properties") or {}
    others = shape.get("additionalProperties", True)
    unknown = [key for key in value if key not in properties]
    if unknown and others is False and "patternProperties" not in shape:
        expected = ", ".join(properties) or "none"
        raise ArgumentsRefused(f"{_path((*path, unknown[0]))}: there is no such argument; expected are: {expected}")
    return {key: converted(item, properties.get(key, others), root, (*path, key)) for key, item in value.items()}


def _branches(schema: Any, root: JsonObject) -> list[JsonObject]:
    """Return the alternatives of a schema, with references resolved; empty if anything is allowed."""
    visited: set[str] = set()
    queue, branches = [schema], []
    while queue:
        branch = queue.pop()
        if not isinstance(branch, dict):
            continue
        reference = branch.get("$ref")
        if isinstance(reference, str):
            if reference not in visited:
                visited.add(reference)
                resolved: Any = root
                for part in filter(None, reference.removeprefix("#").strip("/").split("/")):
                    key = part.replace("~1", "/").replace("~0", "~")
                    resolved = resolved.get(key) if isinstance(resolved, dict) else None
                queue.append(resolved)
        elif alternatives := branch.get("anyOf") or branch.get("oneOf"):
            queue.extend(alternatives)
        else:
            branches.append(branch)
    return branches


def _types(schema: JsonObject) -> set[str]:
    """Return the JSON types a schema takes; one that names none counts as taking a string."""
    type_name = schema.get("type")
    if type_name is not None:
        return {type_name} if isinstance(type_name, str) else set(type_name)
    values = schema.get("enum", [schema["const"]] if "const" in schema else [""])
    return {name for name in _TYPES if any(_is(value, name) for value in values)}


def _only(branches: list[JsonObject], kind: str) -> JsonObject | None:
    matching = [branch for branch in branches if kind in _types(branch)]
    return matching[0] if len(matching) == 1 else None


def _read_as(text: str, types: set[str]) -> Any:
    try:
        parsed = json.loads(_PYTHON.get(text.strip(), text))
    except (ValueError, RecursionError):
        return text
    return parsed if any(_is(parsed, name) for name in types) else text


def _is(value: Any, name: str) -> bool:
    return isinstance(value, _TYPES.get(name, ())) and (isinstance(value, bool) == (name == "boolean"))


def _path(parts: Any) -> str:
    return ".".join(map(str, parts)) or "arguments"
