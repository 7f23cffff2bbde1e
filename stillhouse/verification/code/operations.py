"""What either side may do to an object of the other's, by name."""

import asyncio
import builtins
import importlib
import operator
import random
from collections.abc import Callable
from typing import Any, Final

BINARY: Final = (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "matmul",
    "and_",
    "or_",
    "xor",
    "lshift",
    "rshift",
)
"""Operators that have a reflected form."""
COMPARISONS: Final = ("eq", "ne", "lt", "le", "gt", "ge")
UNARY: Final = ("neg", "pos", "invert", "abs", "len", "bool", "str", "repr", "hash", "int", "float", "round")
"""What takes an object alone and gives a plain value, or another object."""

OPERATIONS: Final[dict[str, Callable[..., Any]]] = {
    **{name: getattr(operator, name) for name in (*BINARY, *COMPARISONS, "neg", "pos", "invert")},
    **{name: getattr(builtins, name) for name in UNARY if hasattr(builtins, name)},
    "index": operator.index,
    "divmod": divmod,
    "iter": iter,
    "reversed": reversed,
    "next": next,
    "contains": operator.contains,
    "getitem": operator.getitem,
    "setitem": operator.setitem,
    "delitem": operator.delitem,
    "format": format,
    "dir": dir,
    "isinstance": isinstance,
    "issubclass": issubclass,
    "call": lambda target, /, *args, **kwargs: target(*args, **kwargs),
    "get": getattr,
    "set": setattr,
    "delete": delattr,
    "enter": lambda manager: type(manager).__enter__(manager),
    "leave": lambda manager, *error: type(manager).__exit__(manager, *error),
    "seed": random.seed,
    "seed_numpy": lambda seed: importlib.import_module("numpy").random.seed(seed),
    "await": lambda waiting: asyncio.run(_wait(waiting)),
}


async def _wait(waiting: Any) -> Any:
    return await waiting
