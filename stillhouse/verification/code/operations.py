"""What either side may do to an object of the other's, by name."""

import asyncio
import builtins
import importlib
import operator
import random
from collections.abc import Callable
from typing import Any, Final

BINARY: Final = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor", "lshift",
                 "rshift")  # fmt: skip
"""Operators that have a reflected form."""
COMPARISONS: Final = ("eq", "ne", "lt", "le", "gt", "ge")
UNARY: Final = ("neg", "pos", "invert", "abs", "len", "bool", "str", "repr", "hash", "int", "float", "round")
"""What takes an object alone and gives a plain value, or another object."""


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
