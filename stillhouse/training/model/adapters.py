"""Adapters over frozen weights: a new one, an earlier one continued, an earlier one merged into the weights.

LoRA (arXiv 2106.09685) adds scale * B A to a layer's weight W, with scale = alpha / rank; rsLoRA (arXiv 2312.03732)
has scale = alpha / sqrt(rank); DoRA (arXiv 2402.09353) trains the norms of the rows of W + scale * B A as well.
Adapters are float32 whatever the type of the weights.
"""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from stillhouse.chat.refs import require_safetensors
from stillhouse.config import StudentConfig
from stillhouse.errors import ConfigError

ALL_LINEAR: Final = "all-linear"


def new_adapter(causal_lm: PreTrainedModel, config: StudentConfig, seed: int) -> Any:
    """Returns peft's wrapper of `causal_lm` with a new adapter, initialised with `seed`."""
    from peft import LoraConfig, get_peft_model

    layers = target_layers(causal_lm, config.lora_targets)
    torch.manual_seed(seed)
    settings = LoraConfig(
        task_type="CAUSAL_LM",
        target_modules=_ends(layers) if config.lora_targets == (ALL_LINEAR,) else list(config.lora_targets),
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        use_rslora=config.lora_variant == "rslora",
        use_dora=config.lora_variant == "dora",
    )
    with _quiet():
        return _checked(get_peft_model(causal_lm, settings), layers, "the new adapter")


def continued_adapter(causal_lm: PreTrainedModel, folder: Path, config: StudentConfig) -> Any:
    """Peft's wrapper of `causal_lm` with the adapter of `folder` to train on; the dropout is the config's.

    Raises:
        ConfigError: the adapter has another variant, shape or layers than the config asks for.
    """
    from peft import LoraConfig

    _require_same_shape(folder, config)
    layers = target_layers(causal_lm, config.lora_targets)
    settings = LoraConfig.from_pretrained(folder)
    settings.lora_dropout = config.lora_dropout
    adapted = _attached(causal_lm, folder, config=settings, is_trainable=True)
    return _checked(adapted, layers, f"the adapter in {folder}")


def merged_adapter(causal_lm: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """`causal_lm` with the adapter of `folder` added to its weights, in the type that they have."""
    return _attached(causal_lm, folder).merge_and_unload()


def target_layers(causal_lm: PreTrainedModel, targets: tuple[str, ...]) -> list[str]:
    """Names of the linear layers that `targets` names, in full or by their last parts.

    Raises:
        ConfigError: a target means no linear layer, or the output or embedding layer.
    """
    output = causal_lm.get_output_embeddings()
    linear = [
        name
        for name, module in causal_lm.named_modules()
        if isinstance(module, torch.nn.Linear | Conv1D) and module is not output
    ]
    if targets == (ALL_LINEAR,):
        return linear
    unsupported = [n for n, m in causal_lm.named_modules() if m is output or m is causal_lm.get_input_embeddings()]
    expected = f"some of {_ends(linear)}, or `{ALL_LINEAR}`"
    for target in targets:
        if any(_matches(target, name) for name in unsupported):
            raise ConfigError(
                f"student.lora_targets names {target!r}: the loss reads the weight of the output layer itself, which "
                f"small models share with the embedding, so that an adapter there would be left out of it. Expected "
                f"{expected}"
            )
        if not any(_matches(target, name) for name in linear):
            alone = f"; `{ALL_LINEAR}` stands alone" if target == ALL_LINEAR else ""
            raise ConfigError(
                f"student.lora_targets names {target!r}, which no linear layer of {type(causal_lm).__name__} is "
                f"called; expected {expected}{alone}"
            )
    return [name for name in linear if any(_matches(target, name) for target in targets)]


def _attached(causal_lm: PreTrainedModel, folder: Path, **how: object) -> Any:
    from peft import PeftModel

    require_safetensors(folder)
    try:
        with _quiet():
            return PeftModel.from_pretrained(causal_lm, folder, **how)
    except (ValueError, RuntimeError) as error:
        raise ConfigError(
            f"the adapter in {folder} does not fit its base model ({type(causal_lm).__name__}): {error}"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses a deprecation warning of transformers about a property that peft reads."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        yield


def _matches(target: str, name: str) -> bool:
    return name == target or name.endswith(f".{target}")


def _ends(names: set[str] | list[str]) -> list[str]:
    return sorted({name.rpartition(".")[2] for name in names})


def _require_same_shape(folder: Path, config: StudentConfig) -> None:
    """Compares the config of an earlier adapter with the student's, before anything is loaded."""
    settings = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    remedy = "can be continued. Set student.parameters to `full` to merge it into the weights"
    if settings.get("peft_type") != "LORA":
        kind = settings.get("peft_type")
        raise ConfigError(f"the adapter in {folder} is of the kind {kind}; only LoRA, rsLoRA and DoRA {remedy}")
    variant = " and ".join(name for name in ("rslora", "dora") if settings.get(f"use_{name}")) or "lora"
    seen = {"lora_variant": variant, "lora_rank": settings["r"], "lora_alpha": settings["lora_alpha"]}
    for field, value in seen.items():
        if value != (expected := getattr(config, field)):
            raise ConfigError(
                f"student.{field} = {expected}: the adapter in {folder} has {value}; an adapter keeps its shape when "
                "it is continued. Use that value"
            )
    for key in ("rank_pattern", "alpha_pattern"):
        if settings.get(key):
            raise ConfigError(
                f"the adapter in {folder} has a {key}, {settings[key]}; only adapters of one rank and one alpha "
                f"{remedy}"
            )


def _checked(adapted: Any, targets: list[str], source: str) -> Any:
    """Checks that exactly the float32 matrices and magnitudes of the target layers are trained."""
    settings = adapted.peft_config["default"]
    # A set in peft, whose order in the saved file would differ from process to process.
    settings.target_modules = sorted(settings.target_modules)
    layers = set()
    for name, parameter in adapted.named_parameters():
        if parameter.requires_grad:
            layer, part, _ = name.removeprefix("base_model.model.").partition(".lora_")
            if not part:
                raise ConfigError(
                    f"{source} trains {name!r} beside its matrices, which a merge would leave out. Set "
                    "student.parameters to `full` to merge it into the weights"
                )
            assert parameter.dtype is torch.float32, f"{source}: {name} is {parameter.dtype}, expected torch.float32"
            layers.add(layer)
    if layers != set(targets):
        raise ConfigError(
            f"student.lora_targets means {_ends(targets)} ({len(targets)} layers), but {source} is on {_ends(layers)} "
            f"({len(layers)}); an adapter keeps its layers. Use {_ends(layers)}"
        )
    return adapted
