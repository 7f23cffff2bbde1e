"""Results of tools as the text that the model reads."""

import json
from collections.abc import Iterator
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError

from stillhouse.tools.context import ToolError


def written(value: Any, result: TypeAdapter[Any]) -> str:
    """Return strings as they are, all else as JSON of the declared type or its own; raise ToolError if it has none."""
    if isinstance(value, str):
        return value
    if isinstance(value, Iterator):
        value = list(value)
    try:
        return result.dump_json(value, warnings=False, fallback=_plain).decode()
    except PydanticSerializationError as error:
        problem = str(error).removeprefix("Error serializing to JSON: ")
    try:
        # Takes lone surrogates.
        plain = result.dump_python(value, mode="json", warnings=False, fallback=_plain)
        return json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (ValueError, TypeError, RecursionError) as error:
        raise ToolError(f"the result, of type {type(value).__name__}, has no JSON form: {problem}") from error


def _plain(value: Any) -> Any:
    """Return numbers and lists of numpy, pandas and torch; the text of what has one of its own."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if type(value).__str__ is object.__str__ and type(value).__repr__ is object.__repr__:
        raise TypeError(f"{type(value).__name__} has neither fields nor text; return numbers, text, lists or dicts")
    return str(value)


def utf8(text: str) -> str:
    """Return `text` without lone surrogates, which no JSON writer and no tokenizer takes."""
    return text.encode("utf-8", errors="replace").decode("utf-8")


def cut(text: str, max_characters: int) -> tuple[str, bool]:
    """Return the text, cut to `max_characters` with a note for the model, and whether it was."""
    if len(text) <= max_characters:
        return text, False
    note = f"[cut here: these are the first {max_characters} of {len(text)} characters]"
    return f"{text[:max_characters].rstrip()}\n\n{note}", True
