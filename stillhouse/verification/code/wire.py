"""Encoding of values between tests and answer: plain values of exact types, and numbers for other objects.

An encoded value is null, a boolean, an integer, a float, a string, or a list `[kind, ...]`. The answer's process can
claim any value, but decoding makes only objects of builtin and standard types.
"""

import datetime
import decimal
import fractions
import json
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Any, Final

# Python's own limit on integers in decimal notation.
_LONG: Final = 1 << 10_000
_ARRAY_KINDS: Final = "biufc"
_SEQUENCES: Final = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}
_DICTS: Final = {"dict": dict, "Counter": Counter, "OrderedDict": OrderedDict}
_TEXTS: Final[dict[str, Callable[[str], Any]]] = {
    "int": lambda text: int(text, 16),
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "fraction": fractions.Fraction,
    "decimal": decimal.Decimal,
    "datetime": datetime.datetime.fromisoformat,
    "date": datetime.date.fromisoformat,
    "time": datetime.time.fromisoformat,
}

MAX_DEPTH: Final = 100
"""Nesting limit of values from the answer; those from the tests may be nested twice as deeply."""

Encode = Callable[[Any], Any]
"""Encodes an object that is not plain as `[kind, ...]`; raises `NotEncodable`."""
Decode = Callable[[list[Any]], Any]
"""The object of such a list; raises `Malformed` for an unknown kind."""


class NotEncodable(Exception):
    """A value cannot be encoded; the message says why."""


class Malformed(Exception):
    """A message has an invalid form."""


def encode(value: Any, other: Encode, depth: int) -> Any:
    """The encoded value, for `dumps`.

    Args:
        value: a plain value, or one that `other` encodes. A subclass of a plain type is not plain.
        other: encodes all other objects.
        depth: nesting limit.

    Raises:
        NotEncodable: it is nested too deeply or contains itself, or `other` refuses an object in it.
    """
    kind = type(value)
    if value is None or kind is bool or kind is float or kind is str:
        return value
    if kind is int:
        return value if -_LONG < value < _LONG else ["int", hex(value)]
    if depth < 0:
        raise NotEncodable("a value is nested too deeply, or contains itself")
    if kind.__name__ in _SEQUENCES and kind is _SEQUENCES[kind.__name__]:
        return [kind.__name__, [encode(item, other, depth - 1) for item in value]]
    if kind in _DICTS.values():
        pairs = [[encode(key, other, depth - 1), encode(item, other, depth - 1)] for key, item in value.items()]
        return [kind.__name__, pairs]
    return _encode_rest(value, kind) or other(value)


def _encode_rest(value: Any, kind: type) -> Any:
    if kind is bytes or kind is bytearray:
        return [kind.__name__, value.hex()]
    if kind is complex:
        return ["complex", value.real, value.imag]
    if kind is range:
        return ["range", value.start, value.stop, value.step]
    if kind is fractions.Fraction:
        return ["fraction", f"{value.numerator}/{value.denominator}"]
    if kind is decimal.Decimal:
        return ["decimal", str(value)]
    if kind in (datetime.datetime, datetime.date, datetime.time) and getattr(value, "tzinfo", None) is None:
        return [kind.__name__, value.isoformat()]
    if kind is datetime.timedelta:
        return ["timedelta", value.days, value.seconds, value.microseconds]
    numpy = sys.modules.get("numpy")
    if numpy is not None and (kind is numpy.ndarray or issubclass(kind, numpy.generic)):
        return _encode_array(numpy, value)
    return None


def _encode_array(numpy: Any, value: Any) -> Any:
    if value.dtype.kind not in _ARRAY_KINDS:
        return None
    contiguous = numpy.ascontiguousarray(value)
    form = "array" if type(value) is numpy.ndarray else "number"
    return [form, value.dtype.str, list(value.shape), contiguous.tobytes().hex()]


def decode(form: Any, other: Decode, depth: int) -> Any:
    """The value of an encoded form.

    Args:
        form: from `loads`.
        other: decodes kinds that are not plain.
        depth: nesting limit.

    Raises:
        Malformed: the form is invalid.
    """
    try:
        return _decode(form, other, depth)
    except Malformed:
        raise
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError, MemoryError, ImportError) as error:
        raise Malformed(f"a value has no valid form: {type(error).__name__}") from error


def _decode(form: Any, other: Decode, depth: int) -> Any:
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
    if kind in _TEXTS:
        return _TEXTS[kind](rest[0])
    if kind == "complex":
        return complex(*rest)
    if kind == "range":
        return range(*rest)
    if kind == "timedelta":
        return datetime.timedelta(*rest)
    if kind in ("array", "number"):
        return _decode_array(kind, *rest)
    return other(form)


def _decode_array(kind: str, dtype: str, shape: list[int], data: str) -> Any:
    import numpy

    array_dtype = numpy.dtype(dtype)
    if array_dtype.kind not in _ARRAY_KINDS:
        raise Malformed("an array is not of numbers")
    array = numpy.frombuffer(bytearray.fromhex(data), array_dtype).reshape(shape)
    return array if kind == "array" else array.reshape(())[()]


def is_mutable(value: Any) -> bool:
    """Whether a plain value can be changed in place."""
    if isinstance(value, list | dict | set | bytearray | deque):
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def dumps(message: Any) -> bytes:
    """A message as bytes; raises NotEncodable if a number in it is too long."""
    try:
        return json.dumps(message).encode()
    except ValueError as error:
        raise NotEncodable("a number is too long") from error


def loads(data: bytes) -> Any:
    """The message in untrusted bytes.

    Raises:
        Malformed: they are not a message.
    """
    try:
        return json.loads(data)
    except (ValueError, RecursionError, MemoryError) as error:
        raise Malformed(f"a message is no JSON: {type(error).__name__}") from error
