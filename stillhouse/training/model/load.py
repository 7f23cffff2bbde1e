"""Loads the student from a model ref or an earlier student's folder, with frozen weights in 4 bits for QLoRA."""

from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, GenerationConfig, PreTrainedModel
from transformers.utils import cached_file, extract_commit_hash

from stillhouse.chat.refs import GENERATION_FILE, SAFE_WEIGHTS, adapter_base, base_revision, resolve_model
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import StudentConfig
from stillhouse.errors import ConfigError
from stillhouse.training.model.adapters import continued_adapter, merged_adapter, new_adapter
from stillhouse.training.model.student import Student


def load_student(ref: str, config: StudentConfig, device: torch.device, seed: int) -> Student:
    """Return the student to train, in eval mode; `seed` is of a new adapter's initialisation.

    `ref` is a model ref, or the folder of an earlier student, whose adapter is continued when an adapter is trained,
    and merged into the float32 weights when all weights are.

    Raises:
        ConfigError: the model cannot be loaded or lacks layers that the config names, an earlier adapter has another
            shape than the config asks for, or 4-bit weights are not available here.
    """
    path = Path(resolve_model(ref))
    base_ref = adapter_base(path) or ref
    has_adapter = base_ref != ref
    dtype = getattr(torch, config.dtype)
    tokenizer = load_tokenizer(ref, config.chat_template_kwargs)
    if config.parameters == "full":
        causal_lm = _load(base_ref, path, dtype=torch.float32).to(device)
        if has_adapter:
            causal_lm = merged_adapter(causal_lm, path)
        return Student(causal_lm.requires_grad_(True).eval(), causal_lm, tokenizer, base_ref, dtype)
    if config.parameters == "qlora":
        nf4 = quantisation(device, dtype)
        causal_lm = _load(base_ref, path, dtype=dtype, quantization_config=nf4, device_map={"": device})
    else:
        causal_lm = _load(base_ref, path, dtype=dtype).to(device)
    adapted = continued_adapter(causal_lm, path, config) if has_adapter else new_adapter(causal_lm, config, seed)
    # Absolute, so that peft finds a folder's weights from wherever the adapter is loaded.
    base = str(Path(base_ref).absolute()) if Path(base_ref).is_dir() else base_ref
    peft_config = adapted.peft_config["default"]
    peft_config.base_model_name_or_path = base
    cached = cached_file(resolve_model(base_ref), "config.json", revision=base_revision(path), local_files_only=True)
    peft_config.revision = extract_commit_hash(cached, None)  # None for a folder
    return Student(adapted.eval(), causal_lm, tokenizer, base_ref, dtype)


def _load(ref: str, student: Path, **how: object) -> PreTrainedModel:
    how["revision"] = base_revision(student)
    try:
        causal_lm = AutoModelForCausalLM.from_pretrained(resolve_model(ref), **how, **SAFE_WEIGHTS)
        if (student / GENERATION_FILE).is_file():  # An adapter's ends may be more than its base's.
            causal_lm.generation_config = GenerationConfig.from_pretrained(student)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ConfigError(f"student model {ref!r} cannot be loaded: {error}") from error
    return causal_lm


def quantisation(device: torch.device, dtype: torch.dtype) -> BitsAndBytesConfig:
    """Return NF4 with quantised scales (0.5 + 0.016 bytes a weight) and products in `dtype` (arXiv 2305.14314).

    Only linear layers of the blocks are quantised: the loss reads the output layer's weight itself.
    """
    remedy = "Set student.parameters to `lora`, which holds the frozen weights in student.dtype"
    require_bitsandbytes("student.parameters = 'qlora'", device, remedy)
    return BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )


def require_bitsandbytes(setting: str, device: torch.device, remedy: str) -> None:
    """Raise a `ConfigError` with the remedy where CUDA or bitsandbytes, which `setting` needs, is missing."""
    missing = []
    if device.type != "cuda":
        missing.append(f"a CUDA device (the job's device is {device.type!r})")
    if find_spec("bitsandbytes") is None:
        missing.append("the package bitsandbytes (pip install 'stillhouse[quantised]')")
    if missing:
        raise ConfigError(f"{setting} needs {' and '.join(missing)}. {remedy}")
