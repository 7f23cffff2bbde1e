"""Proxies of the answer's objects and exceptions in the process of the tests.

The operators of an object are the answer's code, so their results prove nothing. An object returned by the answer is
never shown a value of the tests to compare or calculate with: it equals none. Two objects of the answer may be compared
by it, and an object that the tests constructed from a class of the answer may calculate with operands of the tests,
since that is what such tests are about.
"""

import builtins
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NoReturn, Protocol

from stillhouse.verification.code.operations import BINARY, COMPARISONS, UNARY

_READABLE: Final = frozenset({"__name__", "__doc__", "__qualname__", "__dict__", "__annotations__"})


class ProxyHost(Protocol):
    """The process of the answer, where the objects are."""

    def ask(self, operation: str, *args: Any) -> Any:
        """The result of the operation; raises what it raises."""

    def call(self, target: "SolutionProxy", args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The result of calling the object; raises what the call raises."""

    def give_up(self, reason: str) -> NoReturn:
        """Leaves the answer unverified."""


class SolutionProxy:
    """Proxy of one object of the answer.

    Args:
        answer: where the object is.
        number: its number there.
        is_class: whether calling it constructs an object for the tests.
    """

    __slots__ = ("__weakref__", "_answer", "_is_class", "_is_constructed", "_number")

    _answer: ProxyHost
    _number: int
    _is_class: bool
    _is_constructed: bool

    def __init__(self, answer: ProxyHost, number: int, *, is_class: bool = False) -> None:
        object.__setattr__(self, "_answer", answer)
        object.__setattr__(self, "_number", number)
        object.__setattr__(self, "_is_class", is_class)
        object.__setattr__(self, "_is_constructed", False)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._answer.call(self, args, kwargs)

    def __mro_entries__(self, bases: tuple[object, ...]) -> NoReturn:
        self._answer.give_up("the tests derive a class from one of the answer's")

    def __getattr__(self, name: str) -> Any:
        if (name.startswith("__") and name not in _READABLE) or name in SolutionProxy.__slots__:
            raise AttributeError(name)
        return self._answer.ask("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._answer.ask("set", self, name, value)

    def __delattr__(self, name: str) -> None:
        self._answer.ask("delete", self, name)

    def __iter__(self) -> Iterator[Any]:
        each = self._answer.ask("iter", self)
        return each if type(each) is SolutionProxy else iter(each)

    def __contains__(self, item: Any) -> bool:
        if self._may_see(item):
            return bool(self._answer.ask("contains", self, item))
        return any(element == item for element in self)

    def __enter__(self) -> Any:
        return self._answer.ask("enter", self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> Any:
        return self._answer.ask("leave", self, None, None, None)

    def __instancecheck__(self, value: object) -> bool:
        return type(value) is SolutionProxy and self._answer.ask("isinstance", value, self) is True

    def __subclasscheck__(self, kind: object) -> bool:
        return type(kind) is SolutionProxy and self._answer.ask("issubclass", kind, self) is True

    def __index__(self) -> int:
        return plain(self._answer.ask("index", self), int)

    def __format__(self, how: str) -> str:
        return plain(self._answer.ask("format", self, how), str)

    def __dir__(self) -> list[str]:
        return plain(self._answer.ask("dir", self), list)

    def __hash__(self) -> int:
        return plain(self._answer.ask("hash", self), int)

    def _may_see(self, other: object) -> bool:
        return type(other) is SolutionProxy or self._is_constructed


def plain(value: Any, kind: type) -> Any:
    """The value of an operator; raises TypeError if it is not of `kind`."""
    if type(value) is not kind:
        raise TypeError(f"expected {kind.__name__}, the answer gave {type(value).__name__}")
    return value


def _forwarded(operation: str) -> Callable[..., Any]:
    def method(self: SolutionProxy, *args: Any) -> Any:
        return self._answer.ask(operation, self, *args)

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


def _unary(name: str) -> Callable[..., Any]:
    def method(self: SolutionProxy, *args: Any) -> Any:
        value = self._answer.ask(name, self, *args)
        return plain(value, _RESULTS[name]) if name in _RESULTS else value

    return method


_RESULTS: Final[dict[str, type]] = {
    "len": int,
    "bool": bool,
    "str": str,
    "repr": str,
    "int": int,
    "float": float,
}
for _name in ("getitem", "setitem", "delitem", "next", "reversed"):
    setattr(SolutionProxy, f"__{_name}__", _forwarded(_name))
for _name in COMPARISONS:
    setattr(SolutionProxy, f"__{_name}__", _comparison(_name))
for _name in (*BINARY, "divmod"):
    _method = _name.rstrip("_")
    setattr(SolutionProxy, f"__{_method}__", _binary(_name, is_reflected=False))
    setattr(SolutionProxy, f"__r{_method}__", _binary(_name, is_reflected=True))
for _name in UNARY:
    if _name != "hash":
        setattr(SolutionProxy, f"__{_name}__", _unary(_name))


Family = list[list[str]]
"""Module and name of a class and of its bases, nearest first."""


class _SolutionError:
    """Text and attributes of an exception of the answer's own class."""

    def __str__(self) -> str:
        return str(vars(self).get("_text") or super().__str__())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "_proxy" not in vars(self):
            raise AttributeError(name)
        return getattr(vars(self)["_proxy"], name)


class SolutionErrors:
    """Classes of the answer's exceptions by number, each derived from the nearest base that the tests have, too."""

    def __init__(self) -> None:
        self._classes: dict[int, type[BaseException]] = {}

    def kind(self, number: int, family: Family) -> type[BaseException]:
        """The class with this number and these bases."""
        known = _known(*family[0])
        if known is not None:
            return known
        if number not in self._classes:
            base = next((base for base in (_known(*entry) for entry in family[1:]) if base is not None), Exception)
            self._classes[number] = type(family[0][1], (_SolutionError, base), {"_number": number})
        return self._classes[number]

    def error(
        self, form: list[Any], decode: Callable[[Any], Any], proxy: Callable[[int], SolutionProxy]
    ) -> BaseException:
        """The exception of an encoded form; raises ValueError and the like if it is malformed."""
        _, number, class_number, family, args, text, reason = form
        kind = self.kind(int(class_number), family)
        decoded = [decode(arg) for arg in args]
        try:
            error = kind(*decoded)
        except TypeError:
            error = kind.__new__(kind)
            error.args = tuple(decoded)
        vars(error).update(_text=str(text), _reason=str(reason), _proxy=proxy(int(number)))
        return error


def _known(module: str, name: str) -> type[BaseException] | None:
    """An exception class of the standard library."""
    top = module.partition(".")[0]
    # The exception by which unittest skips a test would skip it.
    if top not in sys.stdlib_module_names or top == "unittest":
        return None
    error_class = getattr(builtins if module == "builtins" else sys.modules.get(module), name, None)
    return error_class if isinstance(error_class, type) and issubclass(error_class, BaseException) else None
