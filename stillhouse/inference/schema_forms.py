"""JSON schemas in the form that an endpoint takes: what it refuses is left out here, and checked when the answer is in.

Sellers take subsets of JSON Schema that differ (https://platform.openai.com/docs/guides/structured-outputs,
https://platform.claude.com/docs/en/build-with-claude/structured-outputs, https://ai.google.dev/api/caching#Schema).
What left the schema stands in its description, where the model reads it.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import orjson
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from stillhouse.types import JsonObject, ToolSchema

_STRUCTURE: Final = frozenset({"type", "description", "enum", "required"})
SILENT: Final = frozenset({"$schema", "$id", "$comment", "$defs", "definitions", "title", "examples"})
"""Say nothing of an answer, or nothing that is not said elsewhere once references are replaced."""
BOUNDS: Final = frozenset(
    {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "pattern", "minItems", "maxItems"}
)


class Misfit(Exception):
    """A schema that a form cannot hold without another meaning; its message says where and why."""


class SchemaForm(NamedTuple):
    """A subset of JSON Schema."""

    is_closed: bool
    """Every object names all of its properties, requires them, and has no others: "strict" at OpenAI and Anthropic."""
    kept: frozenset[str] = frozenset()
    """Keywords beside those of the structure."""

    def of(self, schema: JsonObject) -> JsonObject:
        """Return the schema in this form; raise Misfit if there is none."""
        return _Fitting(self, schema).fitted(schema, "$", ())

    def of_tools(self, tools: Sequence[ToolSchema]) -> list[ToolSchema]:
        """Return the tools, their parameters as objects in this form, which all sellers want; raise Misfit as `of`."""
        return [{**tool, "function": {**tool["function"], **self._parameters(tool["function"])}} for tool in tools]

    def _parameters(self, function: JsonObject) -> JsonObject:
        return {"parameters": self.of({"type": "object", **(function.get("parameters") or {})})}


CLOSED: Final = SchemaForm(is_closed=True)
OPEN: Final = SchemaForm(is_closed=False)
"""The form of Gemini's function declarations, too."""


class _Fitting:
    def __init__(self, form: SchemaForm, root: JsonObject) -> None:
        self._form = form
        self._resolver = Registry().with_resource("", DRAFT202012.create_resource(root)).resolver()

    def fitted(self, schema: Any, path: str, inside: tuple[str, ...]) -> Any:
        """Return a schema at `path` in the form; it stands inside the references `inside`."""
        if not isinstance(schema, dict) or (schema.keys() == {"$ref"} and "$ref" in self._form.kept):
            return schema
        if "$ref" in schema:
            target = self._target(schema["$ref"], path, inside)
            inside = (*inside, schema["$ref"])
        elif len(schema.get("allOf", ())) == 1:
            [target] = schema["allOf"]
        else:
            fitted = self._fitted_keywords(schema, path, inside)
            return _closed(schema, fitted, path) if self._form.is_closed else _opened(fitted)
        beside = {key: value for key, value in schema.items() if key not in ("$ref", "allOf")}
        return self.fitted({**target, **beside} if isinstance(target, dict) else target, path, inside)

    def _target(self, reference: str, path: str, inside: tuple[str, ...]) -> Any:
        if reference in inside:
            raise Misfit(f"at {path} it contains itself ({reference})")
        try:
            return self._resolver.lookup(reference).contents
        except Unresolvable:
            raise Misfit(f"at {path} {reference} is not in it") from None

    def _fitted_keywords(self, schema: JsonObject, path: str, inside: tuple[str, ...]) -> JsonObject:
        form = self._form
        fitted: JsonObject = {}
        left_out: list[str] = []
        for key, value in schema.items():
            if key == "properties" or (key in ("$defs", "definitions") and key in form.kept):
                fitted[key] = {name: self.fitted(item, f"{path}.{name}", inside) for name, item in value.items()}
            elif key == "items":
                fitted[key] = self.fitted(value, f"{path}[]", inside)
            elif key in ("anyOf", "oneOf"):
                fitted["anyOf"] = [self.fitted(item, path, inside) for item in value]
            elif key == "enum" and not form.is_closed and not all(isinstance(item, str) for item in value):
                left_out.append(f"one of {orjson.dumps(value).decode()}")
            elif key in _STRUCTURE or key in form.kept:
                fitted[key] = value
            elif key == "const":
                fitted["enum"] = [value]
            elif key not in SILENT and key != "additionalProperties":
                left_out.append(f"{key}: {orjson.dumps(value).decode()}")
        if left_out:
            fitted["description"] = f"{fitted.get('description', '')} ({', '.join(left_out)})".lstrip()
        return fitted


def _closed(schema: JsonObject, fitted: JsonObject, path: str) -> JsonObject:
    kind = schema.get("type")
    if kind == "object" or "properties" in schema or (isinstance(kind, list) and "object" in kind):
        if schema.get("additionalProperties") or "patternProperties" in schema or "properties" not in schema:
            raise Misfit(f"at {path} it allows keys that it does not name")
        fitted["required"] = list(dict.fromkeys((*fitted.get("required", ()), *fitted["properties"])))
        fitted["additionalProperties"] = False
    return fitted


def _opened(fitted: JsonObject) -> JsonObject:
    """Return a schema with one type, `nullable` instead of a type of null, and what objects and lists must have."""
    nullable: JsonObject = {"nullable": True}
    kinds, branches = fitted.get("type"), fitted.get("anyOf", [])
    if isinstance(kinds, list) and len(named := [kind for kind in kinds if kind != "null"]) == 1:
        fitted |= {"type": named[0]} | (nullable if "null" in kinds else {})
    if len(others := [branch for branch in branches if branch != {"type": "null"}]) == 1:
        del fitted["anyOf"]
        fitted = {**others[0], **fitted} | (nullable if len(branches) > 1 else {})
    needed: JsonObject = {"object": {"properties": {}}, "array": {"items": {}}}
    return {**needed.get(str(fitted.get("type")), {}), **fitted}
