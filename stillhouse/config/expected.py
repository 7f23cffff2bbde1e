"""The value that was expected, in a user's words and not in pydantic's."""

from collections.abc import Mapping
from datetime import date
from typing import Any, Final

_EXPECTED: Final[Mapping[str, str]] = {
    "greater_than": "expected more than {gt:g}",
    "greater_than_equal": "expected at least {ge:g}",
    "less_than": "expected less than {lt:g}",
    "less_than_equal": "expected at most {le:g}",
    "finite_number": "expected a finite number",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "expected a whole number"),
    "int_parsing_size": "expected a whole number of fewer digits",
    **dict.fromkeys(("float_type", "float_parsing"), "expected a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "expected true or false"),
    "string_type": "expected text",
    "string_too_short": "expected text of at least {min_length} characters",
    "string_pattern_mismatch": "expected text that matches {pattern}",
    "literal_error": "expected {expected}",
    **dict.fromkeys(("list_type", "tuple_type"), "expected a list"),
    "too_short": "expected {min_length} or more items",
    "too_long": "expected at most {max_length} items",
    **dict.fromkeys(("dict_type", "mapping_type", "model_type", "model_attributes_type"), "expected a mapping"),
    "missing": "missing; it has no default",
}


def expected(problem: Mapping[str, Any]) -> str:
    """Return the expectation behind one entry of `ValidationError.errors()`; a validator of ours says its own."""
    kind, seen = problem["type"], problem["input"]
    if (template := _EXPECTED.get(kind)) is not None:
        # YAML reads an unquoted `no` as false, and 2024-01-01 as a date; of commented-out keys it leaves a null.
        remedy = ", in quotes" if kind == "string_type" and isinstance(seen, int | float | date) else ""
        remedy = "; leave an empty section out" if kind == "model_type" and seen is None else remedy
        return template.format(**problem.get("ctx", {})) + remedy
    message = str(problem["msg"]).removeprefix("Value error, ").replace("Input should be", "expected")
    return f"{message[:1].lower()}{message[1:]}"
