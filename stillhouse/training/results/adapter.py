"""Reads the description of an adapter from its folder. Free of torch."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from safetensors import SafetensorError, safe_open

from stillhouse.errors import InputError
from stillhouse.inference.vllm.launch import refusal

ADAPTER_FILE: Final = "adapter_config.json"
_WEIGHTS_FILE: Final = "adapter_model.safetensors"


@dataclass(frozen=True, slots=True)
class Adapter:
    base: str
    """Model ref of the weights below it, or their identity."""
    revision: str | None
    """Of a Hugging Face id, the commit that was trained over."""
    variant: str
    """LoRA, rsLoRA or DoRA."""
    rank: int
    alpha: float
    targets: tuple[str, ...]
    """Last parts of the names of its layers, of fused experts the last two, sorted."""
    refusal: str | None
    """Why vLLM does not serve it; None where it does."""
    num_parameters: int


def read_adapter(folder: Path) -> Adapter | None:
    path = folder / ADAPTER_FILE
    if not path.is_file():
        return None
    try:
        config = json.loads(path.read_bytes())
        # A pattern is a single string.
        modules = [config["target_modules"]] if isinstance(config["target_modules"], str) else config["target_modules"]
        parameters = config.get("target_parameters") or []
        with safe_open(folder / _WEIGHTS_FILE, "numpy") as file:
            num_parameters = sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
        return Adapter(
            base=config["base_model_name_or_path"],
            revision=config.get("revision"),
            variant="DoRA" if config.get("use_dora") else "rsLoRA" if config.get("use_rslora") else "LoRA",
            rank=config["r"],
            alpha=config["lora_alpha"],
            targets=tuple(sorted({*(name.rpartition(".")[2] for name in modules), *map(_weight, parameters)})),
            refusal=refusal(config),
            num_parameters=num_parameters,
        )
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise InputError(
            f"{folder}: cannot be read as a LoRA adapter of peft: {type(error).__name__}: {error}"
        ) from error


def _weight(name: str) -> str:
    """Return `experts.down_proj` of fused experts, `down_proj` of the weight of a layer."""
    *_, layer, parameter = name.split(".")
    return layer if parameter == "weight" else f"{layer}.{parameter}"
