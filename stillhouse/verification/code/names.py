"""The names in the tests: those of the answer's objects, and those of a library's."""

import ast
import builtins
import importlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final

_USUAL: Final = {"np": "numpy", "pd": "pandas"}
# Functions that tests compare with, often without an import of their own.
_COMPARING: Final = {"isclose": "math", "fabs": "math", "approx": "pytest", "allclose": "numpy", "array_equal": "numpy"}
_RARE_BUILTINS: Final = frozenset(
    {"bin", "divmod", "filter", "format", "hash", "hex", "max", "min", "oct", "pow", "reversed", "slice", "sum"}
)


class TestNames:
    def __init__(self, tree: ast.Module) -> None:
        loaded = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
        based = [
            node.value.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        ]
        self._used = set(loaded)
        self._modules = {name for name in based if loaded.count(name) == based.count(name)}
        self.classes = frozenset(_class_names(tree, set(based)))
        """Capitalised names that are called and whose results have their attributes used."""

    def of_answer(self, names: Iterable[str]) -> set[str]:
        """Return the names defined by the answer that the tests use without importing them.

        Builtins are left out: an answer that redefines `abs` must not replace it, unless the tests use nothing else.
        """
        used = {name for name in names if name in self._used and not name.startswith("__")}
        defined = {name for name in used if not hasattr(builtins, name)}
        return defined or {name for name in used if name in _RARE_BUILTINS}

    def library(self, name: str) -> Any:
        """Return the library's object that a name must refer to; None if it may be the answer's own."""
        module = _USUAL.get(name, name)
        if name in self._modules and (name in _USUAL or module in sys.stdlib_module_names):
            return _imported(module)
        return getattr(_imported(_COMPARING[name]), name, None) if name in _COMPARING else None


def from_library(module: str, name: str, requested: str) -> Any:
    """Return the object of the standard library that the answer claims to have under its own name, if it is one."""
    top = module.partition(".")[0]
    if name != requested or top not in sys.stdlib_module_names or top in ("builtins", "unittest"):
        return None
    return getattr(_imported(module), name, None)


def _imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def _class_names(tree: ast.Module, based: set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        called: ast.expr | None = None
        if isinstance(node, ast.Attribute):
            called = node.value
        elif isinstance(node, ast.withitem):
            called = node.context_expr
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(not isinstance(target, ast.Name) or target.id in based for target in targets):
                called = node.value
        name = called.func.id if isinstance(called, ast.Call) and isinstance(called.func, ast.Name) else ""
        if name.lstrip("_")[:1].isupper():
            yield name
