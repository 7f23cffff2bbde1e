"""What stands between `<tool_call>` and `</tool_call>`: JSON (Qwen, Hermes), or tags (Qwen3-Coder, GLM).

    {"name": "f", "arguments": {"x": 1}}
    <function=f><parameter=x>1</parameter></function>
    f<arg_key>x</arg_key><arg_value>1</arg_value>

Tags hold strings as they are and other values as JSON, so that only the schema of the tool tells them apart.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from stillhouse.types import JsonObject, ToolSchema

_ARGUMENTS: Final = re.compile(r'"arguments"\s*:\s*')
_TAGGED: Final = (
    (
        re.compile(r"\s*<function=(?P<name>[^>\s]+)>(?P<arguments>.*)</function>\s*", re.DOTALL),
        re.compile(r"\s*<parameter=(?P<key>[^>\s]+)>\n?(?P<value>.*?)\n?</parameter>\s*", re.DOTALL),
    ),
    (
        re.compile(r"\s*(?P<name>[\w.-]+)\s*(?P<arguments><arg_key>.*)", re.DOTALL),
        re.compile(r"\s*<arg_key>(?P<key>.*?)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>\s*", re.DOTALL),
    ),
)
"""The call and one of its arguments, as Qwen3-Coder writes them, and as GLM does."""
_CONSTANTS: Final = {"True": True, "False": False, "None": None}
"""Values that templates write as Python does."""


def name_and_arguments(body: str, tools: Sequence[ToolSchema] | None) -> tuple[str, str] | None:
    """Return name and arguments of a call, these as JSON text, as written where they are; None when `body` is none.

    Values between tags are strings where the schema in `tools` says so, and else JSON if they can be read as such.
    """
    return _from_json(body) or _from_tags(body, tools)


def _from_json(body: str) -> tuple[str, str] | None:
    try:
        value = json.loads(body)
    except json.JSONDecodeError:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments")
    if isinstance(arguments, str):
        return value["name"], arguments
    if not isinstance(arguments, dict):
        return None
    return value["name"], _spelling(body, arguments)


def _spelling(body: str, arguments: dict[str, Any]) -> str:
    """Return the text of `arguments` in `body`; dumped anew where it cannot be located."""
    for match in _ARGUMENTS.finditer(body):
        try:
            value, end = json.JSONDecoder().raw_decode(body, match.end())
        except json.JSONDecodeError:
            continue
        if value == arguments:
            return body[match.end() : end]
    return json.dumps(arguments, ensure_ascii=False)


def _from_tags(body: str, tools: Sequence[ToolSchema] | None) -> tuple[str, str] | None:
    for call, argument in _TAGGED:
        match = call.fullmatch(body)
        if match is not None and not argument.sub("", match["arguments"]).strip():
            values = dict(_typed(match["name"], argument.finditer(match["arguments"]), tools))
            return match["name"], json.dumps(values, ensure_ascii=False)
    return None


def _typed(
    name: str, matches: Iterator[re.Match[str]], tools: Sequence[ToolSchema] | None
) -> Iterator[tuple[str, Any]]:
    functions: dict[str, JsonObject] = {tool["function"]["name"]: {**tool["function"]} for tool in tools or ()}
    properties = (functions.get(name, {}).get("parameters") or {}).get("properties") or {}
    for match in matches:
        key, text = match["key"], match["value"]
        # A schema may also be true or false.
        schema = properties.get(key)
        kinds = schema.get("type", ()) if isinstance(schema, dict) else ()
        is_text = kinds == "string" or ("string" in kinds and text not in ("null", "None"))
        yield key, text if is_text else _value(text)


def _value(text: str) -> Any:
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
