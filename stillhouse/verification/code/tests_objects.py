"""Objects of the tests' that the answer may use: functions to call back, instances of the classes that they define."""

import io
import sys
import types
import unittest
from collections.abc import Callable, Iterator
from typing import Any, Final
from unittest.mock import CallableMixin

from stillhouse.verification.code.operations import OPERATIONS
from stillhouse.verification.code.proxy import SolutionProxy
from stillhouse.verification.code.wire import DEEP, NotEncodable, encode

TESTS: Final = "tests"
"""Name of the module that the tests run as."""

# Public attributes that lead from an object to the frames and modules of the tests.
_CLOSED: Final = ("_", "f_", "gi_", "cr_", "ag_", "tb_", "co_")
_CALLED_ONLY: Final = frozenset({"call"})
_ITERATED_ONLY: Final = frozenset({"iter", "next"})
_ON_OBJECTS: Final = frozenset(OPERATIONS) - {
    *("isinstance", "issubclass", "await", "dir", "enter", "leave", "format", "seed", "seed_numpy")
}


class TestsObjects:
    """The tests' objects by number.

    Args:
        decode: gives the value of a form that the answer sent.
    """

    def __init__(self, decode: Callable[[Any], Any]) -> None:
        self._decode = decode
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}

    def __getitem__(self, number: int) -> Any:
        return self._objects[number]

    def encode(self, value: Any) -> Any:
        """The form of a value for the answer.

        Raises:
            NotEncodable: the answer's process cannot be given such a value.
        """
        return encode(value, self._encode_object, 2 * DEEP)

    def serve(self, request: list[Any]) -> list[Any]:
        """The reply to the answer's request, `[operation, number, encoded arguments, named ones, what it printed]`."""
        operation = request[0]
        show(request[-1])
        try:
            if operation == "input":
                return ["reply", "return", _input_line()]
            target = self._objects[request[1]]
            args = [self._decode(form) for form in request[2]]
            named = {str(key): self._decode(form) for key, form in request[3]}
            if not _may(operation, target, args):
                raise AttributeError(f"{operation} is not for the answer")
            return ["reply", "return", self.encode(OPERATIONS[operation](target, *args, **named))]
        # What a function of the tests' raises is for the answer, which called it.
        except Exception as error:
            name = next(base.__name__ for base in type(error).__mro__ if base.__module__ == "builtins")
            given = [arg if isinstance(arg, str | int | float) else str(arg) for arg in error.args]
            return ["reply", "raise", [self._number_of(error), name, given]]

    def _encode_object(self, value: Any) -> Any:
        if type(value) is SolutionProxy:
            return ["answer", value._number]
        number = getattr(value, "_number_of_answer", None)
        if number is None and isinstance(value, type) and issubclass(value, BaseException):
            number = value.__dict__.get("_number")
        if isinstance(number, int):
            return ["answer", number]
        if isinstance(value, type) and value.__module__ == "builtins":
            return ["type", value.__name__]
        if isinstance(value, types.FunctionType | types.BuiltinFunctionType) and value.__module__ not in (None, TESTS):
            # The answer's process has its own copy. Some would let it do anything here.
            return ["library", value.__module__, value.__qualname__]
        if _operations_on(value):
            return ["tests", self._number_of(value)]
        raise NotEncodable(f"the tests give a {type(value).__name__}")

    def _number_of(self, value: Any) -> int:
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        return self._numbers[id(value)]


def _may(operation: str, target: Any, args: list[Any]) -> bool:
    """Whether the answer may do this to an object of the tests'."""
    if operation in ("get", "set", "delete") and (type(args[0]) is not str or args[0].startswith(_CLOSED)):
        return False
    return operation in _operations_on(target)


def _operations_on(value: Any) -> frozenset[str]:
    """As little as the usual uses of such an object take."""
    if isinstance(value, unittest.TestCase):
        return frozenset()
    if type(value).__module__ == TESTS or isinstance(value, io.StringIO | io.BytesIO):
        return _ON_OBJECTS
    if isinstance(value, CallableMixin):
        return _CALLED_ONLY
    if isinstance(value, Iterator):
        return _ITERATED_ONLY
    return _CALLED_ONLY if callable(value) and getattr(value, "__module__", TESTS) in (None, TESTS) else frozenset()


def show(text: Any) -> None:
    """Prints what the answer printed, to wherever the tests have it go."""
    if text and sys.stdout is not None:
        sys.stdout.write(str(text).encode(errors="replace").decode())


def _input_line() -> str:
    try:
        return input() + "\n"
    except EOFError:
        return ""
