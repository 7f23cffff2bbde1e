"""What a measurement was made on, and whether all packages that the plan imports are there."""

import importlib
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
_VERSIONS: Final = ("torch", "triton", "transformers", "peft", "accelerate", "trl", "liger-kernel", "bitsandbytes")
_PARTS: Final = "benchmarks.gpu.parts."
_OURS: Final = tuple(
    f"{_PARTS}{name}"
    for name in (
        "kernels", "exactness", "gpu_tests", "sft", "on_policy", "sampler", "head", "quantised", "demo", "pretrained",
    )
)  # fmt: skip
_PEERS: Final = {
    "trl": "TRL's rows",
    "datasets": "TRL's rows",
    "liger_kernel.transformers": "rows with Liger's kernels",
    "bitsandbytes": "4-bit weights and 8-bit optimiser states",
}


@dataclass(frozen=True, slots=True)
class Import:
    """The attempt to import a module."""

    module: str
    error: str | None
    """None where it went well."""
    needed_for: str | None = None
    """Rows that are left out without it; None where the whole plan needs it."""


def check_imports() -> list[Import]:
    """Tries every module that the plan imports, those of peers last."""
    ours = [Import(name, _error_of(name)) for name in _OURS]
    return ours + [Import(name, _error_of(name), rows) for name, rows in _PEERS.items()]


def report(imports: list[Import]) -> str:
    """The outcome of `check_imports` in words."""
    lines = [f"Python {platform.python_version()}, " + ", ".join(f"{k} {v}" for k, v in versions().items())]
    for attempt in imports:
        if attempt.error is not None:
            effect = "THE PLAN CANNOT RUN" if attempt.needed_for is None else f"left out: {attempt.needed_for}"
            lines.append(f"{attempt.module}: {attempt.error} ({effect})")
    missing = [attempt for attempt in imports if attempt.error is not None]
    lines.append("everything is there" if not missing else "install benchmarks/gpu/requirements.txt")
    return "\n".join(lines)


def versions() -> dict[str, str]:
    """Versions of the packages that decide the figures, as far as they are installed."""
    installed = {}
    for name in _VERSIONS:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    return installed


def commit() -> str:
    """The commit of the checkout with `+` behind it where files were changed; `unknown` outside a checkout."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def machine(device: str, *, tiny: bool, commit: str) -> dict[str, Any]:
    """Device, versions, commit and scale, to be kept with each measurement.

    Args:
        device: `cuda` or `cpu`.
        tiny: whether models are tiny, to rehearse the plan.
        commit: of the checkout.
    """
    return {**_device(device), "tiny": tiny, "commit": commit, "python": platform.python_version(), **versions()}


def _device(device: str) -> Mapping[str, Any]:
    import torch

    if device != "cuda":
        return {"device_type": device, "device": platform.processor() or platform.machine()}
    properties = torch.cuda.get_device_properties(0)
    return {
        "device_type": device,
        "device": properties.name,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "capability": f"{properties.major}.{properties.minor}",
        "cuda": torch.version.cuda,
    }


def _error_of(module: str) -> str | None:
    try:
        importlib.import_module(module)
    # Whatever a package raises while it is imported, the next one is to be tried.
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None
