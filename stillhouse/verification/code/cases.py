"""Test cases of code, in the forms that datasets use, as programs to run."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from stillhouse.types import JsonObject

FORMS: Final = (
    'code, a list of assert statements, a list of {"input", "output"}, an object with "inputs" and "outputs", or a '
    'list of {"assert_code"}; for calls "fn_name" here or in the metadata'
)
_STDIN: Final = ("input", "stdin")
_STDOUT: Final = ("output", "expected_stdout", "expected_output", "stdout")
_SOURCE: Final = ("assert_code", "code", "test")
_NAMES: Final = ("fn_name", "func_name", "function_name", "entry_point", "function")
_OF_SCRIPTS: Final = frozenset({"stdin", "stdin_stdout"})
"""Kinds of a case, under `testtype` or `type`, that is no call whatever the metadata name."""


def programs_of(test_cases: Any, metadata: Mapping[str, Any]) -> list[JsonObject]:
    """Return the programs of `test_cases`, one of `FORMS` or its JSON text, as `judge` takes them.

    Raises ValueError if they have another form, or there are none.
    """
    value = test_cases
    if isinstance(test_cases, str):
        # Text that is not JSON is code.
        with suppress(ValueError):
            value = json.loads(test_cases)
    name = function_name(value, metadata)
    programs: list[JsonObject] = []
    if isinstance(value, str) and value.strip():
        programs = [_of_item(value, name)]
    elif isinstance(value, dict):
        programs = _of_columns(value, name) if "inputs" in value else [_of_item(value, name)]
    elif isinstance(value, list):
        if all(isinstance(item, str) and item.lstrip().startswith("assert") for item in value):
            value = ["\n".join(value)] if value else []
        programs = [_of_item(item, name) for item in value]
    if not programs:
        raise ValueError(f"expected test_cases to be {FORMS}; saw {_brief(value)}")
    return programs


def function_name(test_cases: Any, metadata: Mapping[str, Any]) -> str | None:
    """Return the name of the function under test, if the test cases or the metadata give one."""
    sources = (test_cases, metadata) if isinstance(test_cases, dict) else (metadata,)
    names = (source.get(key) for source in sources for key in _NAMES)
    return next((name for name in names if isinstance(name, str) and name), None)


def _of_columns(value: Mapping[str, Any], name: str | None) -> list[JsonObject]:
    inputs, outputs = value.get("inputs"), value.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise ValueError("expected inputs and outputs of test_cases to be lists of one length")
    if name and not _is_of_script(value):
        calls = [_call(name, args, expected) for args, expected in zip(inputs, outputs, strict=True)]
        return [{"calls": calls}] if calls else []
    return [_script(stdin, expected) for stdin, expected in zip(inputs, outputs, strict=True)]


def _of_item(item: Any, name: str | None) -> JsonObject:
    source = _first(item, _SOURCE) if isinstance(item, dict) else item
    if isinstance(source, str):
        return {"tests": source, "entry_point": name}
    if isinstance(item, dict):
        more = item.get("metadata")
        name = function_name(item, more if isinstance(more, dict) else {}) or name
        stdin, expected = _first(item, _STDIN), _first(item, _STDOUT)
        if expected is not None:
            if not name or any("std" in key for key in item) or _is_of_script(item):
                return _script(stdin, expected)
            return {"calls": [_call(name, stdin, expected)]}
    raise ValueError(
        f"expected each of test_cases to be an assert or an object with input and output; saw {_brief(item)}"
    )


def _is_of_script(item: Mapping[str, Any]) -> bool:
    return not _OF_SCRIPTS.isdisjoint(str(item.get(key)) for key in ("testtype", "type"))


def _call(name: str, args: Any, expected: Any) -> JsonObject:
    if not name.isidentifier():
        raise ValueError(f"expected the function of test_cases by its name alone, saw {_brief(name)}")
    if isinstance(args, str):
        # LiveCodeBench (https://arxiv.org/abs/2403.07974) writes each argument as a line of JSON, and the result as
        # JSON; text that is none is itself the argument.
        with suppress(ValueError):
            result = json.loads(expected) if isinstance(expected, str) else expected
            args, expected = [json.loads(line) for line in args.splitlines()], result
    return {"name": name, "args": args if isinstance(args, list) else [args], "expected": expected}


def _script(stdin: Any, expected: Any) -> JsonObject:
    return {"stdin": _text(stdin), "stdout": _text(expected)}


def _text(stream: Any) -> str:
    """Return the text of a stream, which some datasets write as a list of lines."""
    lines = stream if isinstance(stream, list) else [] if stream is None else [stream]
    return "\n".join(map(str, lines))


def _first(item: Mapping[str, Any], keys: Sequence[str]) -> Any:
    return next((item[key] for key in keys if item.get(key) is not None), None)


def _brief(value: Any) -> str:
    return f"{type(value).__name__} {str(value)[:80]!r}"
