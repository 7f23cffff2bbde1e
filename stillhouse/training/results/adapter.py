"""Reads the description of an adapter from its folder. Free of torch."""

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stillhouse.errors import InputError

ADAPTER_FILE: Final = "adapter_config.json"
_WEIGHTS_FILE: Final = "adapter_model.safetensors"


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter."""

    base: str
    """Model ref of the weights below it."""
    variant: str
    """LoRA, rsLoRA or DoRA."""
    rank: int
    alpha: float
    targets: tuple[str, ...]
    """Last parts of the names of its layers, sorted."""
    num_parameters: int


def read_adapter(folder: Path) -> Adapter | None:
    """The adapter in a folder; None where there is none.

    Raises:
        InputError: it cannot be read.
    """
    path = folder / ADAPTER_FILE
    if not path.is_file():
        return None
    try:
        config = json.loads(path.read_bytes())
        # A pattern is a single string.
        targets = [config["target_modules"]] if isinstance(config["target_modules"], str) else config["target_modules"]
        return Adapter(
            base=config["base_model_name_or_path"],
            variant="DoRA" if config.get("use_dora") else "rsLoRA" if config.get("use_rslora") else "LoRA",
            rank=config["r"],
            alpha=config["lora_alpha"],
            targets=tuple(sorted({name.rpartition(".")[2] for name in targets})),
            num_parameters=_num_parameters(folder / _WEIGHTS_FILE),
        )
    except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
        raise InputError(
            f"{folder}: cannot be read as a LoRA adapter of peft: {type(error).__name__}: {error}"
        ) from error


def _num_parameters(weights: Path) -> int:
    """Values in a safetensors file, by its header: eight bytes of length, then JSON (safetensors' README, Format)."""
    with weights.open("rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
