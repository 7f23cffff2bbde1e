"""What `@tool` and `@reward` record about a function that runs in a sandbox."""

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stillhouse.sandbox.jail import Permissions


@dataclass(frozen=True, slots=True)
class SandboxedFunction:
    """A function at the top level of a Python file, and what its calls may access."""

    file: Path
    name: str
    permissions: Permissions


def sandboxed_function(
    function: Callable[..., Any], *, sandbox: bool, network: bool = False, files: Sequence[str] = ()
) -> SandboxedFunction | None:
    """The function as a sandbox finds it; None if it runs in this process.

    Args:
        function: the decorated function.
        sandbox: whether its calls run in a jail.
        network: see `Permissions`.
        files: what its calls may read; relative paths start at the folder of its Python file.

    Raises:
        ValueError: it is not at the top level of a Python file, a file is missing, permissions are given without a
            sandbox, or this is not Linux; the message says what to do.
    """
    if not sandbox:
        if network or files:
            raise ValueError("network and files are what a sandbox lets through; write sandbox=True beside them")
        return None
    if sys.platform != "linux":
        raise ValueError(f"sandbox=True needs Linux, this is {sys.platform}; leave it out, or run it in a container")
    file = Path(inspect.unwrap(function).__code__.co_filename)
    if function.__qualname__ != function.__name__ or not file.is_file():
        raise ValueError("sandbox=True needs a function at the top of a Python file, not inside another one")
    file = file.absolute()
    return SandboxedFunction(file, function.__name__, Permissions(network, _existing(file.parent, files)))


def _existing(folder: Path, files: Sequence[str]) -> tuple[str, ...]:
    paths = [folder / Path(name).expanduser() for name in files]
    for path in paths:
        if not path.exists():
            raise ValueError(f"files names {path}, which does not exist; create it, or take it out")
    return tuple(str(path) for path in paths)
