"""Loads the tools of a user's Python file by its path."""

import hashlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from stillhouse.errors import ConfigError
from stillhouse.tools.tool import Tool


def load_tools(path: Path) -> list[Tool]:
    """The functions under `@tool` in a Python file, in the order they are written.

    Raises:
        ConfigError: no such file, it does not run, or it has no `@tool`; the message names the file, and the line where
            there is one.
    """
    found = [value for value in vars(load_module(path, "tools.file")).values() if isinstance(value, Tool)]
    if not found:
        raise ConfigError(
            f"{path}: has no function under @tool. Write `from stillhouse.tools import tool` and put @tool above each "
            "function that the model may call"
        )
    return found


def load_module(path: Path, wanted_by: str) -> ModuleType:
    """Runs a user's Python file.

    The module gets a name of its own, so that two files called tools.py do not meet.

    Args:
        path: the file.
        wanted_by: the setting that names it, for messages.

    Raises:
        ConfigError: no such file, or it does not run; the message names the file, and the line where there is one.
    """
    path = path.expanduser().absolute()
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; {wanted_by} must name a Python file")
    name = f"stillhouse_user_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path}: is not a Python file; expected a name that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except ConfigError:
        del sys.modules[name]
        raise
    # A user's file may fail in any way; each is the same mistake to report: the file does not load.
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(f"{_place(path, error)}: cannot be loaded: {type(error).__name__}: {error}") from error
    return module


def _place(path: Path, error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"{error.filename or path}, line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path}, line {lines[-1]}" if lines else str(path)
