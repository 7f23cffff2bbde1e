"""The environment of vLLM, and the GPUs of this machine."""

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import pynvml

from stillhouse.config import OnPolicyTeacher, RuntimeConfig
from stillhouse.errors import ConfigError

_FIRST_VERSION: Final = (0, 32)
"""Of which the flags and routes are used."""
_REMEDY: Final = "run `make vllm`, or name another Python in runtime.vllm_python"


class Gpu(NamedTuple):
    name: str
    """For CUDA_VISIBLE_DEVICES: its number on the bus, as vLLM reads no UUIDs, but for a MIG device, which has none."""
    total: int
    """Bytes, as `free`."""
    free: int


def vllm_python(runtime: RuntimeConfig) -> Path | None:
    """Return the Python that serves models by vLLM; None where transformers serves them.

    Raises ConfigError where `runtime` wants vLLM and it is not there, or too old.
    """
    if runtime.engine == "transformers" or (runtime.engine == "auto" and (runtime.device == "cpu" or not gpus())):
        return None
    made = Path(sys.prefix).with_name(".venv-vllm")
    if runtime.vllm_python is not None:
        named = shutil.which(os.path.expanduser(runtime.vllm_python))
        if named is None:
            raise ConfigError(f"runtime.vllm_python is {runtime.vllm_python!r}, which is no program; {_REMEDY}")
        python = Path(named).absolute()
    elif (made / ".ready").is_file():
        python = made / "bin" / "python"
    elif runtime.engine == "auto":
        return None
    else:
        raise ConfigError(f"vLLM has no environment at {made}; {_REMEDY}")
    version = vllm_version(python)
    if tuple(map(int, version.split(".")[:2])) < _FIRST_VERSION:
        expected = ".".join(map(str, _FIRST_VERSION))
        raise ConfigError(f"{python} has vLLM {version}, expected {expected} or later; {_REMEDY}")
    return python


def python_for_teacher(settings: OnPolicyTeacher, runtime: RuntimeConfig) -> Path:
    """Return the Python that serves a teacher without an address; raise ConfigError if it is missing or too old."""
    try:
        python = vllm_python(runtime.model_copy(update={"engine": "vllm"}))
    except ConfigError as error:
        raise ConfigError(
            f"teacher {settings.name!r} of kind `vllm` has no base_url, so that the run starts its server: {error}. Or "
            "give it the base_url of a server, or the kind `local`"
        ) from error
    assert python is not None
    return python


@lru_cache
def vllm_version(python: Path) -> str:
    code = "import importlib.metadata as m; print(m.version('vllm'))"
    asked = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=False)
    version = asked.stdout.strip()
    if not version[:1].isdigit() or "." not in version:
        raise ConfigError(f"{python} has no vLLM: {asked.stderr.strip()[-300:] or version!r}; {_REMEDY}")
    return version


def gpus() -> list[Gpu]:
    """Return the NVIDIA GPUs that this process may use, in the order of their numbers in torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    found: list[Gpu] = []
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        names = map(str, range(pynvml.nvmlDeviceGetCount())) if visible is None else filter(None, visible.split(","))
        for name in map(str.strip, names):
            of_name = pynvml.nvmlDeviceGetHandleByUUID
            handle = pynvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else of_name(name)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            number = name if name.startswith("MIG-") else str(pynvml.nvmlDeviceGetIndex(handle))
            found.append(Gpu(number, int(memory.total), int(memory.free)))
    return found
