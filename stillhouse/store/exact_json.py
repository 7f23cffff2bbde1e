"""JSON as orjson reads and writes it, with whole numbers of any size: orjson makes floats of those above 64 bits."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from typing import Any, Final

import orjson

_DIGITS: Final = bytes.maketrans(b"123456789", b"000000000")
_LONG: Final = b"0" * 19
_LONG_NUMBER: Final = re.compile(rb"\d{19,}")


def loads(data: bytes | str) -> Any:
    """Return the value of JSON text; raise orjson.JSONDecodeError if it is none or a number has over 4300 digits."""
    # A lone surrogate stays none.
    text = data.encode(errors="surrogatepass") if isinstance(data, str) else data
    digits = text.translate(_DIGITS)
    # Those after a point are a float's.
    if _LONG not in digits.replace(b"." + _LONG, b""):
        return orjson.loads(data)
    # Refuses what is no JSON, which json takes; four digits, since a number may follow `\\u` in a text.
    orjson.loads(_LONG_NUMBER.sub(b"1111", text))
    try:
        return json.loads(data)
    except ValueError as error:
        raise orjson.JSONDecodeError(str(error), "", 0) from error


def dumps(value: Any, *, option: int | None = None, default: Callable[[Any], Any] | None = None) -> bytes:
    """Return a value as JSON, as orjson writes it; raise TypeError if it holds something JSON does not have."""
    try:
        return orjson.dumps(value, default, option)
    except TypeError as error:
        if "64-bit" not in str(error):
            raise
        return orjson.dumps(_with_digits(value), default, option)


def _with_digits(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_digits(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_digits(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return _with_digits(asdict(value))
    is_long = isinstance(value, int) and not -(1 << 63) <= value < 1 << 64
    return orjson.Fragment(str(value)) if is_long else value
