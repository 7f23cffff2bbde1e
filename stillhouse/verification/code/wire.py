"""Messages between tests and answer, as JSON, and what either side may do to an object of the other's.

Plain values of exact types are encoded, as null, a boolean, an integer, a float, a string, or a list `[kind, ...]`;
other objects stay where they are and have numbers. The answer's process can claim any value, but decoding makes only
objects of builtin and standard types.
"""

import asyncio
import builtins
import datetime
import decimal
import fractions
import importlib
import json
import operator
import random
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any, Final

# Python's own limit on integers in decimal notation.
_LONG: Final = 1 << 10_000
_ARRAY_KINDS: Final = "biufc"
_SEQUENCES: Final = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}
_DICTS: Final = {"dict": dict, "Counter": Counter, "OrderedDict": OrderedDict}


def _array(dtype: str, shape: list[int], data: str) -> Any:
    import numpy

    array_dtype = numpy.dtype(dtype)
    if array_dtype.kind not in _ARRAY_KINDS:
        raise Malformed("an array is not of numbers")
    return numpy.frombuffer(bytearray.fromhex(data), array_dtype).reshape(shape)


_FORMS: Final[dict[type, tuple[Callable[[Any], tuple[Any, ...]], Callable[..., Any]]]] = {
    bytes: (lambda value: (value.hex(),), bytes.fromhex),
    bytearray: (lambda value: (value.hex(),), bytearray.fromhex),
    complex: (lambda value: (value.real, value.imag), complex),
    range: (lambda value: (value.start, value.stop, value.step), range),
    fractions.Fraction: (lambda value: (str(value),), fractions.Fraction),
    decimal.Decimal: (lambda value: (str(value),), decimal.Decimal),
    datetime.datetime: (lambda value: (value.isoformat(),), datetime.datetime.fromisoformat),
    datetime.date: (lambda value: (value.isoformat(),), datetime.date.fromisoformat),
    datetime.time: (lambda value: (value.isoformat(),), datetime.time.fromisoformat),
    datetime.timedelta: (lambda value: (value.days, value.seconds, value.microseconds), datetime.timedelta),
}
"""The fields by which other plain values are written, and what makes the value of them."""
_MADE_OF: Final[dict[str, Callable[..., Any]]] = {
    **{kind.__name__: make for kind, (_, make) in _FORMS.items()},
    "int": lambda text: int(text, 16),
    "array": _array,
    "number": lambda *fields: _array(*fields).reshape(())[()],
}

MAX_DEPTH: Final = 100
"""Nesting limit of values from the answer; those from the tests may be nested twice as deeply."""

MAX_MESSAGE_BYTES: Final = 16 << 20
"""Size of one message from the answer."""

Convert = Callable[[Any], Any]
"""Encodes an object that is not plain as `[kind, ...]`, or decodes it; raises `NotEncodable`, or `Malformed`."""


class Registry:
    """Objects by number, for the other side to refer to; new ones get the next number."""

    def __init__(self) -> None:
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}

    def __getitem__(self, number: int) -> Any:
        return self._objects[number]

    def number_of(self, value: object) -> int:
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        return self._numbers[id(value)]


class NotEncodable(Exception):
    """A value cannot be encoded; the message says why."""


class Malformed(Exception):
    """A message has an invalid form."""


def encode(value: Any, other: Convert, depth: int) -> Any:
    """Return the encoded value; `other` encodes what is not plain, and a subclass of a plain type is not plain.

    Raises NotEncodable if it is nested more than `depth` times or contains itself, or `other` refuses an object in it.
    """
    kind = type(value)
    if value is None or kind in (bool, float, str):
        return value
    if kind is int:
        return value if -_LONG < value < _LONG else ["int", hex(value)]
    if depth < 0:
        raise NotEncodable("a value is nested too deeply, or contains itself")
    if kind in _SEQUENCES.values():
        return [kind.__name__, [encode(item, other, depth - 1) for item in value]]
    if kind in _DICTS.values():
        pairs = [[encode(key, other, depth - 1), encode(item, other, depth - 1)] for key, item in value.items()]
        return [kind.__name__, pairs]
    if kind in _FORMS and getattr(value, "tzinfo", None) is None:
        return [kind.__name__, *_FORMS[kind][0](value)]
    numpy: Any = sys.modules.get("numpy")
    is_array = numpy is not None and (kind is numpy.ndarray or issubclass(kind, numpy.generic))
    if is_array and value.dtype.kind in _ARRAY_KINDS:
        form = "array" if kind is numpy.ndarray else "number"
        return [form, value.dtype.str, list(value.shape), numpy.ascontiguousarray(value).tobytes().hex()]
    return other(value)


def decode(form: Any, other: Convert, depth: int) -> Any:
    """Return the value of an encoded form, nested at most `depth` times; `other` decodes kinds that are not plain.

    Raises Malformed if the form is invalid.
    """
    try:
        return _decode(form, other, depth)
    except Malformed:
        raise
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError, MemoryError, ImportError) as error:
        raise Malformed(f"a value has no valid form: {type(error).__name__}") from error


def _decode(form: Any, other: Convert, depth: int) -> Any:
    if not isinstance(form, list):
        if isinstance(form, dict):
            raise Malformed("a value is a JSON object")
        return form
    if depth < 0:
        raise Malformed("a value is nested too deeply")
    kind, *rest = form
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](_decode(item, other, depth - 1) for item in rest[0])
    if kind in _DICTS:
        return _DICTS[kind]({_decode(key, other, depth - 1): _decode(item, other, depth - 1) for key, item in rest[0]})
    return _MADE_OF[kind](*rest) if kind in _MADE_OF else other(form)


def is_mutable(value: Any) -> bool:
    """Return whether a plain value can be changed in place."""
    if isinstance(value, list | dict | set | bytearray | deque):
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


class ChannelClosed(Exception):
    """The other side has ended, or closed the channel."""


def send(channel: Connection, message: Any) -> None:
    """Send one message; raise NotEncodable if a number in it is too long, ChannelClosed if the other side is gone."""
    try:
        data = json.dumps(message).encode()
    except ValueError as error:
        raise NotEncodable("a number is too long") from error
    try:
        channel.send_bytes(data)
    except OSError as error:
        raise ChannelClosed from error


def receive(channel: Connection, ended: Any = None) -> Any:
    """Return the next message; raise Malformed if it is none, ChannelClosed if there are no more.

    At the tests' end, `ended` becomes readable once the answer's process has ended, since processes it started may keep
    the channel open.
    """
    try:
        if ended is not None and channel not in wait([channel, ended]):
            raise ChannelClosed
        data = channel.recv_bytes(None if ended is None else MAX_MESSAGE_BYTES)
    except (EOFError, ConnectionError) as error:
        raise ChannelClosed from error
    except OSError as error:
        raise Malformed(f"a message has more than {MAX_MESSAGE_BYTES} bytes") from error
    return loads(data)


def loads(data: bytes) -> Any:
    """Return the message in untrusted bytes; raise Malformed if they are none."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError, MemoryError) as error:
        raise Malformed(f"a message is no JSON: {type(error).__name__}") from error


BINARY: Final = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor", "lshift",
                 "rshift")  # fmt: skip
"""Operators that have a reflected form."""
COMPARISONS: Final = ("eq", "ne", "lt", "le", "gt", "ge")
UNARY: Final = ("neg", "pos", "invert", "abs", "len", "bool", "str", "repr", "hash", "int", "float", "round")
"""Operators that take an object alone and give a plain value, or another object."""


async def _wait(waiting: Any) -> Any:
    return await waiting


OPERATIONS: Final[dict[str, Callable[..., Any]]] = {
    **{name: getattr(operator, name) for name in (*BINARY, *COMPARISONS, "neg", "pos", "invert", "index")},
    **{name: getattr(operator, name) for name in ("contains", "getitem", "setitem", "delitem", "call")},
    **{name: getattr(builtins, name) for name in UNARY if hasattr(builtins, name)},
    **{name: getattr(builtins, name) for name in ("divmod", "iter", "reversed", "next", "format", "dir")},
    "isinstance": isinstance,
    "issubclass": issubclass,
    "get": getattr,
    "set": setattr,
    "delete": delattr,
    "enter": lambda manager: type(manager).__enter__(manager),
    "leave": lambda manager, *error: type(manager).__exit__(manager, *error),
    "seed": random.seed,
    "seed_numpy": lambda seed: importlib.import_module("numpy").random.seed(seed),
    "await": lambda waiting: asyncio.run(_wait(waiting)),
}
