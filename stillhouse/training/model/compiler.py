"""Whether this machine can compile what a training runs."""

import logging
import os
import shutil
from functools import cache
from importlib.util import find_spec

import torch

logger = logging.getLogger(__name__)


def missing_compiler(device: torch.device) -> str | None:
    """What `torch.compile` needs for `device` and this machine lacks; None where it has all of it."""
    if device.type == "cuda" and find_spec("triton") is None:
        return "the package triton"
    variable, names = ("CC", ("gcc", "clang")) if device.type == "cuda" else ("CXX", ("g++", "clang++"))
    if any(shutil.which(name) for name in (os.environ.get(variable, names[0]), *names)):
        return None
    return f"a compiler for the host's processor ({' or '.join(names)}, or the variable {variable})"


@cache
def can_compile(device: torch.device) -> bool:
    """Whether a function of one operation compiles and runs on `device`; a warning gives the reason why it does not.

    A compiler may be there and still fail, most often because the header files of Python are not.
    """
    missing = missing_compiler(device)
    if missing is None:
        try:
            torch.compile(_probe)(torch.zeros(32, device=device))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever compilers and drivers end in
            missing = f"a compiler that works ({type(error).__name__}: {str(error).strip().splitlines()[0]})"
    if missing is not None:
        logger.warning("training is not compiled, which makes it slower: torch.compile needs %s", missing)
    return missing is None


def _probe(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1.0
