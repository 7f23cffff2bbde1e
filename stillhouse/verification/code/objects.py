"""Objects that one side holds and the other refers to by number, in the process of the answer."""

import builtins
import importlib
import inspect
import operator
import traceback
import types
from collections.abc import Callable
from typing import Any, Final

from stillhouse.verification.code.wire import MAX_DEPTH, Malformed, NotEncodable, Registry, decode, encode

SOLUTION: Final = "solution"
"""Name of the module the answer is imported as."""
FILE: Final = f"{SOLUTION}.py"

_MAX_REASON_CHARS: Final = 500
_PLAIN: Final[dict[type, Callable[[Any], Any]]] = {
    int: int.__index__,
    float: float.__float__,
    str: lambda value: str.__str__(value)[:],
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    list: lambda value: list(list.__iter__(value)),
    tuple: lambda value: tuple(tuple.__iter__(value)),
    set: lambda value: set(set.__iter__(value)),
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
    dict: lambda value: dict(dict.items(value)),
}


class SolutionObjects(Registry):
    """The answer's objects by number, and proxies of those of the tests.

    `ask(operation, number, encoded args, encoded kwargs)` returns the reply of the tests.
    """

    def __init__(self, ask: Callable[..., Any]) -> None:
        super().__init__()
        self._ask = ask

    def encode(self, value: Any) -> Any:
        """Return the encoded value; raise NotEncodable."""
        try:
            return encode(value, self._encode_object, MAX_DEPTH)
        except RecursionError as error:
            raise NotEncodable("a value contains itself") from error

    def decode(self, form: Any) -> Any:
        """Return the value of an encoded form from the tests."""
        return decode(form, self._decode_object, 3 * MAX_DEPTH)

    def encode_error(self, error: BaseException) -> Any:
        """Return an exception: its number and its class's, the bases, the arguments, the text, and the reason."""
        number = getattr(error, "_of_tests", None)
        if number is not None:
            return ["tests", number]
        try:
            args = [self.encode(arg) for arg in error.args]
        except NotEncodable:
            args = [str(error)]
        kind = type(error)
        numbers = (self.number_of(error), self.number_of(kind))
        return ["answer", *numbers, _family(kind), args, str(error), reason_of(error)]

    def error_of_tests(self, number: int, name: str, args: list[Any]) -> BaseException:
        """Return an exception raised by the tests, as a subclass of a builtin."""
        error: BaseException = type(name, (getattr(builtins, name, Exception),), {})()
        error.args = tuple(self.decode(arg) for arg in args)
        error._of_tests = number  # type: ignore[attr-defined]
        return error

    def _encode_object(self, value: Any) -> Any:
        if isinstance(value, TestsProxy):
            return ["tests", value._number]
        if isinstance(value, type) and value.__module__ == "builtins":
            return ["type", value.__name__]
        if isinstance(value, types.ModuleType):
            return ["module", value.__name__, self.number_of(value)]
        if isinstance(value, type) and issubclass(value, BaseException):
            return ["error", self.number_of(value), _family(value)]
        for base, plain in _PLAIN.items():
            if isinstance(value, base):
                return ["derived", self.encode(plain(value)), self.number_of(value)]
        number = self.number_of(value)
        if inspect.iscoroutine(value):
            return ["coroutine", number]
        module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if isinstance(module, str) and isinstance(name, str) and module != SOLUTION and callable(value):
            return ["imported", module, name, number]
        return ["answer", number]

    def _decode_object(self, form: list[Any]) -> Any:
        kind, rest = form[0], form[1:]
        if kind == "answer":
            return self[rest[0]]
        if kind == "tests":
            return TestsProxy(self._ask_for, rest[0])
        if kind == "type":
            return getattr(builtins, rest[0])
        if kind == "library":
            module, name = rest
            return operator.attrgetter(name)(importlib.import_module(module))
        raise Malformed(f"no value is of kind {kind!r}")

    def _ask_for(self, operation: str, number: int, /, *args: Any, **kwargs: Any) -> Any:
        encoded = {key: self.encode(value) for key, value in kwargs.items()}
        return self._ask(operation, number, [self.encode(arg) for arg in args], encoded)


class TestsProxy:
    """Proxy of an object of the tests: a callback, or an instance of a class that they define."""

    _ask: Callable[..., Any]
    _number: int

    def __init__(self, ask: Callable[..., Any], number: int) -> None:
        object.__setattr__(self, "_ask", ask)
        object.__setattr__(self, "_number", number)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TestsProxy) and other._number == self._number:
            return True
        return bool(self._ask("eq", self._number, other))

    def __hash__(self) -> int:
        return hash(self._number)


def _forwarded(operation: str) -> Callable[..., Any]:
    def method(self: TestsProxy, /, *args: Any, **kwargs: Any) -> Any:
        return self._ask(operation, self._number, *args, **kwargs)

    return method


_FORWARDED: Final = ("call", "iter", "next", "len", "getitem", "setitem", "delitem", "contains", "bool", "lt", "le",
                     "gt", "ge", "str")  # fmt: skip
for _method, _operation in (("getattr", "get"), ("setattr", "set"), *((name, name) for name in _FORWARDED)):
    setattr(TestsProxy, f"__{_method}__", _forwarded(_operation))


def _family(kind: type) -> list[list[str]]:
    """Return module and name of a class and of its bases, nearest first."""
    return [[base.__module__, base.__qualname__] for base in kind.__mro__]


def reason_of(error: BaseException, file: str = FILE, source: str = "") -> str:
    """Return where the code of `file` raised the error, its type, and the first line of its text, else of `source`."""
    lines = [frame.lineno or 1 for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    location = f"{file}, line {lines[-1]}: " if lines else ""
    said = str(error).strip().partition("\n")[0] or "".join(source.splitlines()[lines[-1] - 1 :][:1] if lines else ())
    return f"{location}{type(error).__name__}: {said.strip()}"[:_MAX_REASON_CHARS]
