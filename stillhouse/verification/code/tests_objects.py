"""Objects of the tests that the answer may use: callbacks, and instances of classes that the tests define."""

import io
import types
import unittest
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final
from unittest.mock import CallableMixin

from stillhouse.verification.code.proxy import SolutionProxy
from stillhouse.verification.code.wire import MAX_DEPTH, OPERATIONS, NotEncodable, Registry, encode

TESTS: Final = "tests"
"""Name of the module that the tests run as."""

# Public attributes that lead from an object to the frames and modules of the tests.
_CLOSED: Final = ("_", "f_", "gi_", "cr_", "ag_", "tb_", "co_")
_CALLED_ONLY: Final = frozenset({"call"})
_ITERATED_ONLY: Final = frozenset({"iter", "next"})
_ON_OBJECTS: Final = frozenset(OPERATIONS) - {
    *("isinstance", "issubclass", "await", "dir", "enter", "leave", "format", "seed", "seed_numpy")
}


class TestsObjects(Registry):
    """The tests' objects by number; `decode` decodes a value sent by the answer."""

    def __init__(self, decode: Callable[[Any], Any]) -> None:
        super().__init__()
        self._decode = decode

    def encode(self, value: Any) -> Any:
        """Return the encoded value; raise NotEncodable if the answer's process cannot have such a value."""
        return encode(value, self._encode_object, 2 * MAX_DEPTH)

    def serve(self, operation: str, number: int = 0, args: Sequence[Any] = (), kwargs: Any = None) -> list[Any]:
        """Return the reply to a request of the answer; arguments are encoded."""
        try:
            if operation == "input":
                try:
                    return ["value", input() + "\n"]
                except EOFError:
                    return ["value", ""]
            target = self[number]
            decoded = [self._decode(form) for form in args]
            options = {str(key): self._decode(form) for key, form in kwargs.items()}
            names_member = operation in ("get", "set", "delete")
            is_closed = names_member and (type(decoded[0]) is not str or decoded[0].startswith(_CLOSED))
            if is_closed or operation not in _operations_on(target):
                raise AttributeError(f"{operation} is not for the answer")
            return ["value", self.encode(OPERATIONS[operation](target, *decoded, **options))]
        # What a callback raises is for the answer, which called it.
        except Exception as error:
            name = next(base.__name__ for base in type(error).__mro__ if base.__module__ == "builtins")
            plain_args = [arg if isinstance(arg, str | int | float) else str(arg) for arg in error.args]
            return ["error", self.number_of(error), name, plain_args]

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
            return ["tests", self.number_of(value)]
        raise NotEncodable(f"the tests give a {type(value).__name__}")


def _operations_on(value: Any) -> frozenset[str]:
    """Return the operations that the usual uses of such an object need, and no others."""
    if isinstance(value, unittest.TestCase):
        return frozenset()
    if type(value).__module__ == TESTS or isinstance(value, io.StringIO | io.BytesIO):
        return _ON_OBJECTS
    if isinstance(value, CallableMixin):
        return _CALLED_ONLY
    if isinstance(value, Iterator):
        return _ITERATED_ONLY
    return _CALLED_ONLY if callable(value) and getattr(value, "__module__", TESTS) in (None, TESTS) else frozenset()
