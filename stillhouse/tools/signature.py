"""What `@tool` and `@reward` read off a function."""

import inspect
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


def hints_of_scorer(function: Callable[..., Any], args: type) -> dict[str, Any]:
    """The type hints of a user's function that looks at a finished trajectory.

    Raises:
        ValueError: its parameters are others than `(args: ARGS, messages)`, or a hint names something unknown.
    """
    try:
        hints = type_hints(function)
    except NameError as error:
        raise ValueError(f"a type hint names something unknown: {error}") from error
    parameters = list(inspect.signature(function).parameters.values())
    if (
        len(parameters) != 2
        or any(one.kind is not one.POSITIONAL_OR_KEYWORD for one in parameters)
        or hints.get(parameters[0].name) is not args
    ):
        raise ValueError(f"expected the parameters (args: {args.__name__}, messages: list[Message])")
    return hints
