"""Pages of the config: each field with type, default, bounds and help, from the schema that Prefect's form shows."""

import json
from collections.abc import Iterator
from typing import Any

from stillhouse.config import DistillConfig
from stillhouse.config.section import ADVANCED
from stillhouse.report.markdown import table

FOLDER = "reference/config"
_BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}


def config_pages() -> dict[str, str]:
    """Markdown by path under the docs folder: a page a section, in the config's order, after a page that lists them."""
    schema = DistillConfig.model_json_schema()
    sections = {name: _resolved(field, schema) for name, field in schema["properties"].items()}
    rows = [(f"[`{name}`]({name}.md)", _help(section)) for name, section in sections.items()]
    index = [
        "# Config",
        "A config is one YAML file. Each section and each key may be left out and has the default shown here. "
        "`--set section.key=value` overrides one on the command line; a key that is unknown is an error that names the "
        "nearest known one.",
        table(("section", "what it is"), rows),
    ]
    pages = {f"{FOLDER}/index.md": "\n\n".join(index)}
    for name, section in sections.items():
        pages[f"{FOLDER}/{name}.md"] = "\n\n".join([f"# `{name}`", _help(section), *_fields(name, section, schema)])
    return pages


def _fields(path: str, section: dict[str, Any], schema: dict[str, Any]) -> Iterator[str]:
    """The fields of a section, then the sections inside it under their own headings."""
    inner = []
    for name, field in section["properties"].items():
        key = f"{path}.{name}"
        below = _section_of(field, schema)
        if below is not None:
            inner.append((key, field, *below))
        else:
            yield _field(key, field)
    for key, field, below_schema, is_list in inner:
        yield f"## `{key}` {{ #{key} }}"
        yield field.get("description") or _help(below_schema)
        if is_list:
            yield _facts(field)
        yield from _fields(f"{key}[]" if is_list else key, below_schema, schema)


def _field(key: str, field: dict[str, Any]) -> str:
    return f"### `{key}` {{ #{key} }}\n\n{_facts(field)}\n\n{field['description']}"


def _facts(field: dict[str, Any]) -> str:
    facts = [field["title"].removesuffix(ADVANCED), _type(field)]
    if "default" in field:
        facts.append(f"default `{_yaml(field['default'])}`")
    elif field.get("nullable"):
        facts.append("default `null`")
    else:
        facts.append("**required**")
    return "\n".join(['<div class="facts" markdown>', " · ".join(facts), "</div>"])


def _type(field: dict[str, Any]) -> str:
    """What may be written there, in words."""
    if field.get("nullable"):
        return f"{_type({name: value for name, value in field.items() if name != 'nullable'})} or `null`"
    if "anyOf" in field:
        return " or ".join(_type(one) for one in field["anyOf"])
    if "enum" in field or "const" in field:
        return "one of " + ", ".join(
            f"`{value}`" for value in field.get("enum", [field.get("const")]) if value is not None
        )
    if "$ref" in field:
        return "section"
    match field["type"]:
        case "array":
            told = f"list of {_type(field['items'])}"
            return told if "minItems" not in field else f"{told}, {field['minItems']} or more"
        case "object" if isinstance(field.get("additionalProperties"), dict):
            return f"mapping of names to {_type(field['additionalProperties'])}"
        case "object":
            return "mapping"
        case "null":
            return "`null`"
        case kind:
            word = {"string": "text", "integer": "whole number", "number": "number", "boolean": "`true` or `false`"}
            bounds = [f"{told} {field[bound]:g}" for bound, told in _BOUNDS.items() if bound in field]
            pattern = [f"matching `{field['pattern']}`"] if "pattern" in field else []
            return ", ".join([word[kind], *bounds, *pattern])


def _section_of(field: dict[str, Any], schema: dict[str, Any]) -> tuple[dict[str, Any], bool] | None:
    """The section that a field holds, and whether it holds a list of them; None for a plain field."""
    if "$ref" in field:
        return _resolved(field, schema), False
    if field.get("type") == "array" and "$ref" in field["items"]:
        return _resolved(field["items"], schema), True
    return None


def _resolved(field: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = schema["$defs"][field["$ref"].rsplit("/", 1)[1]]
    return found


def _help(section: dict[str, Any]) -> str:
    return str(section["description"])


def _yaml(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
