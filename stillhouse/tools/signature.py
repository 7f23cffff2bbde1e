"""What `@tool` and `@reward` read off a function."""

from collections.abc import Callable
from typing import Any, get_type_hints


def type_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The function's type hints, those written as strings resolved; raises NameError where one cannot be."""
    return get_type_hints(function, include_extras=True)


def place_of(function: Callable[..., Any]) -> str:
    """Name, file and line of a function, for messages."""
    code = getattr(function, "__code__", None)
    place = f" ({code.co_filename}, line {code.co_firstlineno})" if code is not None else ""
    return f"{getattr(function, '__name__', function)!s}{place}"
