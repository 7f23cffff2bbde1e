"""Triton on a CPU by its own interpreter, so that vLLM's second model runner works there: slow, and for tiny models."""

from pathlib import Path
from typing import Final

_PACKAGE: Final = "interpreted_triton"
_COMPILER: Final = """
from triton.backends.compiler import BaseBackend


class CpuBackend(BaseBackend):
    supports_target = staticmethod(lambda target: target.backend == "cpu")
    hash = lambda self: "cpu"
    parse_options = add_stages = load_dialects = lambda self, *given: None
    get_module_map = lambda self: {}
"""
_DRIVER: Final = """
import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase


class CpuDriver(DriverBase):
    __init__ = lambda self: None
    is_active = classmethod(lambda cls: True)
    map_python_to_cpp_type = lambda self, kind: kind
    get_current_target = lambda self: GPUTarget("cpu", 0, 1)
    get_active_torch_device = lambda self: torch.device("cpu")
    get_benchmarker = lambda self: None
"""


def interpreted_triton(folder: Path) -> dict[str, str]:
    """Write a back end named `cpu`, for which vLLM looks; return the variables of a vLLM that has it."""
    package, known_by = folder / _PACKAGE, folder / f"{_PACKAGE}-1.dist-info"
    for path, text in (
        (package / "__init__.py", ""),
        (package / "compiler.py", _COMPILER),
        (package / "driver.py", _DRIVER),
        (known_by / "METADATA", f"Metadata-Version: 2.1\nName: {_PACKAGE}\nVersion: 1\n"),
        (known_by / "entry_points.txt", f"[triton.backends]\ncpu = {_PACKAGE}\n"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {"PYTHONPATH": str(folder), "TRITON_INTERPRET": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"}
