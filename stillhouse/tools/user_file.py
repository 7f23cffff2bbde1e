"""A user's Python file: loaded by its path, and the functions in it that a decorator of ours marked."""

import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar, get_type_hints

from stillhouse.errors import ConfigError
from stillhouse.tools.rnow.importing import is_rnow_installed, offer_rnow, rnow_hint

T = TypeVar("T")

_NAMESPACES: Final = (
    *("stillhouse.tools", "rnow.core", "typing", "collections.abc", "dataclasses", "datetime", "pathlib"),
    *("collections", "pydantic", "stillhouse.types"),
)
"""Where tools and rewards import names from, in this order."""
_SHORT_NAMES: Final = {"np": "numpy as np", "pd": "pandas as pd"}


def load_decorated(path: Path, setting: str, kind: type[T], decorator: str, purpose: str) -> list[T]:
    """The objects of one kind at the top of a Python file, in the order they are written.

    Args:
        path: the file.
        setting: the setting that names it, for messages.
        kind: what the decorator makes of a function.
        decorator: name of the decorator in `stillhouse.tools`.
        purpose: what such a function does, for messages.

    Raises:
        ConfigError: as `load_module`, or there is no such object.
    """
    decorated = [value for value in vars(load_module(path, setting)).values() if isinstance(value, kind)]
    if not decorated:
        if is_rnow_installed():
            raise ConfigError(
                f"{path}: has no function under @{decorator} of Stillhouse, but the package rnow is installed here and "
                "gave it its own. Uninstall rnow where Stillhouse runs, which then offers these names itself"
            )
        raise ConfigError(
            f"{path}: has no function under @{decorator}. Write `from stillhouse.tools import {decorator}` and put "
            f"@{decorator} above each function that {purpose}"
        )
    return decorated


def load_module(path: Path, setting: str) -> ModuleType:
    """Runs a user's Python file, as a module named after its path: two files called tools.py do not collide.

    The decorators `tool` and `reward` are there without an import.

    Raises:
        ConfigError: `setting` names no file, or it does not run; the message names the file, and the line if known.
    """
    path = path.expanduser().absolute()
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; {setting} must name a Python file", code="user-file")
    name = f"stillhouse_user_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path}: is not a Python file; expected a name that ends in .py")
    offer_rnow()
    module = importlib.util.module_from_spec(spec)
    # Not above: the decorators' own modules import this one.
    ours = importlib.import_module("stillhouse.tools")
    vars(module).update(tool=ours.tool, reward=ours.reward)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    # A user's file may fail in any way; all are reported as a file that does not load.
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        if isinstance(error, ConfigError):
            raise
        location = str(path)
        if isinstance(error, SyntaxError):
            location = f"{error.filename or path}, line {error.lineno}"
        elif lines := [
            frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == location
        ]:
            location = f"{path}, line {lines[-1]}"
        problem = f"{type(error).__name__}: {error}{_remedy(error)}"
        raise ConfigError(f"{location}: cannot be loaded: {problem}", code="user-code") from error
    return module


def _remedy(error: BaseException) -> str:
    if hint := rnow_hint(error):
        return hint
    if isinstance(error, ModuleNotFoundError):
        return f"; install its package for {sys.executable}, as a requirements.txt beside the file may list it"
    return import_hint(error) if isinstance(error, NameError) else ""


def import_hint(error: NameError) -> str:
    """The line that a file needs, in which the name of the error is not defined."""
    name = error.name or ""
    if name in _SHORT_NAMES or importlib.util.find_spec(name or "_") is not None:
        return f"; add the line `import {_SHORT_NAMES.get(name, name)}`"
    offer_rnow()
    modules = [module for module in _NAMESPACES if hasattr(importlib.import_module(module), name)]
    return f"; add the line `from {modules[0]} import {name}`" if modules else "; define or import it before this line"


def describe_function(function: Callable[..., Any]) -> str:
    """Name, file and line of a function, for messages."""
    code = getattr(function, "__code__", None)
    location = f" ({code.co_filename}, line {code.co_firstlineno})" if code is not None else ""
    return f"{getattr(function, '__name__', function)!s}{location}"


def type_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The function's resolved type hints; raises ValueError if one names something unknown, or there can be none."""
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        raise ValueError(f"a type hint names something unknown: {error}{import_hint(error)}") from error
    except TypeError as error:
        raise ValueError(f"its type hints cannot be read ({error}); write it as a function") from error


def scorer_hints(function: Callable[..., Any], args: type) -> dict[str, Any]:
    """The type hints of a user's function `(args: ARGS, messages)` of a finished trajectory.

    Raises:
        ValueError: its parameters are others, or a hint names something unknown.
    """
    hints = type_hints(function)
    parameters = list(inspect.signature(function).parameters.values())
    are_positional = all(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters)
    if len(parameters) != 2 or not are_positional or hints.get(parameters[0].name) is not args:
        raise ValueError(f"expected the parameters (args: {args.__name__}, messages: list[Message])")
    return hints
