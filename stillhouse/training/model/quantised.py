"""Frozen weights in 4 bits, for QLoRA (arXiv 2305.14314).

The linear layers of the blocks are stored as NF4 with quantised scales (0.5 + 0.016 bytes a weight) and multiplied in
the type of computation. The embedding, the norms and the output layer keep that type: the loss reads the output
layer's weight itself.
"""

from importlib.util import find_spec

import torch
from transformers import BitsAndBytesConfig

from stillhouse.errors import ConfigError


def quantisation(device: torch.device, dtype: torch.dtype) -> BitsAndBytesConfig:
    """How `from_pretrained` is to quantise: NF4, scales quantised too, products in `dtype`.

    Raises:
        ConfigError: `device` is not CUDA, or bitsandbytes is not installed.
    """
    require_bitsandbytes(
        "student.parameters = 'qlora'",
        device,
        "Set student.parameters to `lora`, which holds the frozen weights in student.dtype",
    )
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )


def require_bitsandbytes(setting: str, device: torch.device, remedy: str) -> None:
    """Raises a `ConfigError` that names all that `setting` lacks here, and the remedy."""
    missing = []
    if device.type != "cuda":
        missing.append(f"a CUDA device (the job's device is {device.type!r})")
    if find_spec("bitsandbytes") is None:
        missing.append("the package bitsandbytes (pip install 'stillhouse[quantised]')")
    if missing:
        raise ConfigError(f"{setting} needs {' and '.join(missing)}. {remedy}")
