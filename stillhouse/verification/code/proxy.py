"""Proxies of the answer's objects and exceptions in the process of the tests.

The operators of an object are the answer's code, so their results prove nothing. An object returned by the answer is
never shown a value of the tests to compare or calculate with: it equals none. Two objects of the answer may be compared
by it, and an object that the tests constructed from a class of the answer may calculate with operands of the tests,
since that is what such tests are about.
"""

import builtins
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NoReturn

from stillhouse.verification.code.wire import BINARY, COMPARISONS, UNARY

if TYPE_CHECKING:
    from stillhouse.verification.code.solution import SolutionClient

_READABLE: Final = frozenset({"__name__", "__doc__", "__qualname__", "__dict__", "__annotations__"})


class SolutionProxy:
    """Proxy of the object with this number in the answer's process; calling an `is_class` constructs for the tests."""

    __slots__ = ("__weakref__", "_answer", "_is_class", "_is_constructed", "_number")

    _answer: "SolutionClient"
    _number: int
    _is_class: bool
    _is_constructed: bool

    def __init__(self, answer: "SolutionClient", number: int, *, is_class: bool = False) -> None:
        fields = {"_answer": answer, "_number": number, "_is_class": is_class, "_is_constructed": False}
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._answer.call(self, args, kwargs)

    def __mro_entries__(self, bases: tuple[object, ...]) -> NoReturn:
        self._answer.give_up("the tests derive a class from one of the answer's")

    def __getattr__(self, name: str) -> Any:
        if (name.startswith("__") and name not in _READABLE) or name in SolutionProxy.__slots__:
            raise AttributeError(name)
        return self._answer.ask("get", self, name)

    def __iter__(self) -> Iterator[Any]:
        each = self._answer.ask("iter", self)
        return each if type(each) is SolutionProxy else iter(each)

    def __contains__(self, item: Any) -> bool:
        if self._may_see(item):
            return bool(self._answer.ask("contains", self, item))
        return any(element == item for element in self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> Any:
        return self._answer.ask("leave", self, None, None, None)

    def __instancecheck__(self, value: object) -> bool:
        return type(value) is SolutionProxy and self._answer.ask("isinstance", value, self) is True

    def __subclasscheck__(self, kind: object) -> bool:
        return type(kind) is SolutionProxy and self._answer.ask("issubclass", kind, self) is True

    def _may_see(self, other: object) -> bool:
        return type(other) is SolutionProxy or self._is_constructed


def _forwarded(operation: str) -> Callable[..., Any]:
    result = _RESULTS.get(operation)

    def method(self: SolutionProxy, *args: Any) -> Any:
        value = self._answer.ask(operation, self, *args)
        if result is not None and type(value) is not result:
            raise TypeError(f"expected {result.__name__}, the answer gave {type(value).__name__}")
        return value

    return method


def _comparison(operation: str) -> Callable[[SolutionProxy, object], Any]:
    def method(self: SolutionProxy, other: object) -> Any:
        if type(other) is SolutionProxy:
            return self._answer.ask(operation, self, other)
        if self._is_constructed:
            self._answer.give_up("the tests compare a value of theirs with an object of the answer's own class")
        return NotImplemented

    return method


def _binary(name: str, *, is_reflected: bool) -> Callable[[SolutionProxy, Any], Any]:
    def method(self: SolutionProxy, other: Any) -> Any:
        if not self._may_see(other):
            return NotImplemented
        return self._answer.ask(name, other, self) if is_reflected else self._answer.ask(name, self, other)

    return method


_RESULTS: Final[dict[str, type]] = {
    **dict.fromkeys(("len", "int", "hash", "index"), int),
    **dict.fromkeys(("str", "repr", "format"), str),
    **{"bool": bool, "float": float, "dir": list},
}
"""Types that Python requires of an operator's result."""
for _name in (*UNARY, "index", "format", "dir", "enter", "next", "reversed", "getitem", "setitem", "delitem"):
    setattr(SolutionProxy, f"__{_name}__", _forwarded(_name))
for _method, _name in (("setattr", "set"), ("delattr", "delete")):
    setattr(SolutionProxy, f"__{_method}__", _forwarded(_name))
for _name in COMPARISONS:
    setattr(SolutionProxy, f"__{_name}__", _comparison(_name))
for _name in (*BINARY, "divmod"):
    _method = _name.rstrip("_")
    setattr(SolutionProxy, f"__{_method}__", _binary(_name, is_reflected=False))
    setattr(SolutionProxy, f"__r{_method}__", _binary(_name, is_reflected=True))


class _SolutionError:
    """Text and attributes of an exception of the answer's own class."""

    def __str__(self) -> str:
        return str(vars(self).get("_text") or super().__str__())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "_proxy" not in vars(self):
            raise AttributeError(name)
        return getattr(vars(self)["_proxy"], name)


def error_class(number: int, family: list[list[str]], known: dict[int, type[BaseException]]) -> type[BaseException]:
    """Return a class of the answer's exceptions, derived from the nearest base that the tests have, too.

    `family` has module and name of it and of its bases, nearest first; those that were made before are `known`.
    """
    bases = [_known(*entry) for entry in family]
    if bases[0] is not None:
        return bases[0]
    if number not in known:
        base = next((base for base in bases if base is not None), Exception)
        known[number] = type(family[0][1], (_SolutionError, base), {"_number": number})
    return known[number]


def error_of(kind: type[BaseException], args: list[Any], **members: Any) -> BaseException:
    try:
        error = kind(*args)
    except TypeError:
        error = kind.__new__(kind)
        error.args = tuple(args)
    vars(error).update(members)
    return error


def _known(module: str, name: str) -> type[BaseException] | None:
    """Return an exception class of the standard library."""
    top = module.partition(".")[0]
    # The exception by which unittest skips a test would skip it.
    if top not in sys.stdlib_module_names or top == "unittest":
        return None
    error_class = getattr(builtins if module == "builtins" else sys.modules.get(module), name, None)
    return error_class if isinstance(error_class, type) and issubclass(error_class, BaseException) else None
