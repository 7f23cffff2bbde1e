"""Loading models for sampling and scoring."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from stillhouse.attention import use_attention
from stillhouse.chat.refs import SAFE_WEIGHTS, adapter_base, base_revision, require_safetensors, resolve_model
from stillhouse.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]


def load_model(
    ref: str, *, device: Device = "auto", dtype: Dtype = "float32", num_threads: int | None = None
) -> "PreTrainedModel":
    """Load the model of a ref for inference; an adapter's folder gives its base with the adapter merged in.

    Device `auto` takes CUDA if available. Type `auto` keeps the stored one on CUDA and takes float32 on a CPU. Raise
    ConfigError if there is no model at `ref`, or `device` is `cuda` without one.
    """
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    elif device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is 'cuda' but torch finds no CUDA device; use device 'auto' or 'cpu'")
    if dtype == "auto" and device == "cpu":
        dtype = "float32"
    # A progress bar would break into the caller's own display.
    transformers_logging.disable_progress_bar()
    path = resolve_model(ref)
    base = adapter_base(Path(path))
    try:
        model = AutoModelForCausalLM.from_pretrained(
            path if base is None else resolve_model(base),
            dtype=dtype if dtype == "auto" else getattr(torch, dtype),
            revision=base_revision(Path(path)),
            **SAFE_WEIGHTS,
        )
        if base is not None:
            # Imported here, as it takes seconds.
            from peft import PeftModel

            require_safetensors(Path(path))
            model = PeftModel.from_pretrained(model, path).merge_and_unload()
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ConfigError(f"model {ref!r} cannot be loaded: {error}") from error
    return use_attention(model).to(device).eval().requires_grad_(False)
