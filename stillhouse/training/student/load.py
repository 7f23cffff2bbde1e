"""The student from a model ref or from an earlier student's folder.

`peft` takes seconds to import and is imported only when there is an adapter.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from stillhouse.chat.refs import adapter_base, resolve_model
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import StudentConfig
from stillhouse.errors import ConfigError
from stillhouse.training.student.student import Student


def load_student(ref: str, config: StudentConfig, device: torch.device, seed: int) -> Student:
    """The student to train, in eval mode.

    Args:
        ref: a model ref, or the folder of an earlier student. An earlier adapter is continued when an adapter is asked
            for, over the same base, and merged into the weights when all of them are to be trained.
        config: what is trained and in which type.
        device: where to put it.
        seed: draws a new adapter's first matrices.

    Raises:
        ConfigError: the model cannot be loaded, or an earlier adapter has another shape than the config asks for.
    """
    path = Path(resolve_model(ref))
    base_ref = adapter_base(path) or ref
    dtype = getattr(torch, config.dtype)
    is_full = config.parameters == "full"
    causal_lm = _load(base_ref, torch.float32 if is_full else dtype).to(device)
    tokenizer = load_tokenizer(ref)
    if is_full:
        if base_ref != ref:
            causal_lm = _merged(causal_lm, path)
        return Student(causal_lm.requires_grad_(True).eval(), causal_lm, tokenizer, base_ref, dtype)
    adapted = _continued_adapter(causal_lm, path, config) if base_ref != ref else _new_adapter(causal_lm, config, seed)
    adapted.peft_config["default"].base_model_name_or_path = base_ref
    return Student(adapted.eval(), causal_lm, tokenizer, base_ref, dtype)


def _load(ref: str, dtype: torch.dtype) -> PreTrainedModel:
    try:
        return AutoModelForCausalLM.from_pretrained(resolve_model(ref), dtype=dtype)
    except (OSError, ValueError) as error:
        raise ConfigError(f"student model {ref!r} cannot be loaded: {error}") from error


def _new_adapter(causal_lm: PreTrainedModel, config: StudentConfig, seed: int) -> Any:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    # "all-linear" leaves the output layer out, which is tied to the embedding in small models.
    lora = LoraConfig(
        task_type="CAUSAL_LM",
        target_modules="all-linear",
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
    )
    return get_peft_model(causal_lm, lora)


def _continued_adapter(causal_lm: PreTrainedModel, folder: Path, config: StudentConfig) -> Any:
    from peft import PeftModel

    settings = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    for field, key in (("lora_rank", "r"), ("lora_alpha", "lora_alpha")):
        if settings[key] != getattr(config, field):
            raise ConfigError(
                f"student.{field} = {getattr(config, field)}: the adapter in {folder} has {settings[key]}; an adapter "
                "keeps its shape when it is continued. Use that value"
            )
    adapted = PeftModel.from_pretrained(causal_lm, folder, is_trainable=True)
    for module in adapted.modules():
        if isinstance(module, nn.Dropout):
            module.p = config.lora_dropout
    return adapted


def _merged(causal_lm: PreTrainedModel, folder: Path) -> PreTrainedModel:
    from peft import PeftModel

    return PeftModel.from_pretrained(causal_lm, folder).merge_and_unload()
