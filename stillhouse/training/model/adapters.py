"""Adapters over frozen weights: a new one, an earlier one continued, an earlier one merged into the weights.

LoRA (arXiv 2106.09685) adds scale * B A to a layer's weight W, with scale = alpha / rank; rsLoRA (arXiv 2312.03732)
has scale = alpha / sqrt(rank). Adapters are float32 whatever the type of the weights.
"""

import json
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from stillhouse.chat.refs import require_safetensors
from stillhouse.config import StudentConfig
from stillhouse.errors import ConfigError
from stillhouse.training.model.adapter_targets import (
    ALL_LINEAR,
    EXPERTS,
    AdapterTargets,
    adapter_targets,
    exact_suffixes,
    fused_experts,
    labels,
)


def new_adapter(causal_lm: PreTrainedModel, config: StudentConfig, seed: int) -> Any:
    """Return peft's wrapper of `causal_lm` with a new adapter, initialised with `seed`."""
    from peft import LoraConfig, get_peft_model

    targets = adapter_targets(causal_lm, config.lora_targets)
    _require_supported(causal_lm, targets, config)
    suffixes = labels(targets.modules) if ALL_LINEAR in config.lora_targets else config.lora_targets
    torch.manual_seed(seed)
    settings = LoraConfig(
        task_type="CAUSAL_LM",
        target_modules=exact_suffixes(causal_lm, targets.modules, suffixes),
        target_parameters=list(targets.parameters) or None,
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        use_rslora=config.lora_variant == "rslora",
    )
    with _quiet():
        return _checked(get_peft_model(causal_lm, settings), targets, "the new adapter")


def continued_adapter(causal_lm: PreTrainedModel, folder: Path, config: StudentConfig) -> Any:
    """Return peft's wrapper of `causal_lm` with the adapter of `folder` to train on; the dropout is the config's.

    Raises:
        ConfigError: the adapter has another variant, shape or layers than the config asks for.
    """
    from peft import LoraConfig

    _require_same_shape(folder, config)
    targets = adapter_targets(causal_lm, config.lora_targets)
    _require_supported(causal_lm, targets, config)
    settings = LoraConfig.from_pretrained(folder)
    settings.lora_dropout = config.lora_dropout
    adapted = attached_adapter(causal_lm, folder, config=settings, is_trainable=True)
    return _checked(adapted, targets, f"the adapter in {folder}")


def merged_adapter(causal_lm: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Return `causal_lm` with the adapter of `folder` added to its weights, in the type that they have."""
    return attached_adapter(causal_lm, folder).merge_and_unload()


def attached_adapter(causal_lm: PreTrainedModel, folder: Path, **how: object) -> Any:
    """Return peft's wrapper of `causal_lm` with the adapter of `folder`; raise ConfigError where they do not fit."""
    from peft import PeftModel

    require_safetensors(folder)
    try:
        with _quiet():
            return PeftModel.from_pretrained(causal_lm, folder, **how)
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"the adapter in {folder} does not fit its base model ({type(causal_lm).__name__}): {error}"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress a deprecation warning of transformers about a property that peft reads."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        yield


def _require_same_shape(folder: Path, config: StudentConfig) -> None:
    """Compare the config of an earlier adapter with the student's, before anything is loaded."""
    settings = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    remedy = "can be continued. Set student.parameters to `full` to merge it into the weights"
    kind = "DoRA" if settings.get("use_dora") else settings.get("peft_type")
    if kind != "LORA":
        raise ConfigError(f"the adapter in {folder} is of the kind {kind}; only LoRA and rsLoRA {remedy}")
    variant = "rslora" if settings.get("use_rslora") else "lora"
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


def _require_supported(causal_lm: PreTrainedModel, targets: AdapterTargets, config: StudentConfig) -> None:
    """Refuse what peft cannot do where an adapter is on a parameter."""
    if not targets.parameters:
        return
    refused = [f"lora_dropout = {config.lora_dropout}"] if config.lora_dropout else []
    if not all(causal_lm.get_parameter(name).is_floating_point() for name in targets.parameters):
        refused.append("parameters = qlora")
    if refused:
        remedy = labels(targets.modules or adapter_targets(causal_lm, (ALL_LINEAR,)).modules)
        raise ConfigError(
            f"student.{refused[0]}: peft cannot do that for {labels(targets.parameters)} of "
            f"{type(causal_lm).__name__}. Set student.lora_targets to {remedy}, which leaves them "
            "frozen"
        )


def _checked(adapted: Any, targets: AdapterTargets, source: str) -> Any:
    """Check that exactly the float32 matrices of the targets are trained."""
    settings = adapted.peft_config["default"]
    # Sets in peft, whose order in the saved file would differ from process to process.
    settings.target_modules = sorted(settings.target_modules)
    if settings.target_parameters is not None:
        settings.target_parameters = sorted(settings.target_parameters)
    for name, parameter in adapted.named_parameters():
        if parameter.requires_grad:
            if ".lora_" not in name:
                raise ConfigError(
                    f"{source} trains {name!r} beside its matrices, which a merge would leave out. Set "
                    "student.parameters to `full` to merge it into the weights"
                )
            assert parameter.dtype is torch.float32, f"{source}: {name} is {parameter.dtype}, expected torch.float32"
    adapted_names, expected = _adapted_weights(adapted), {*targets.modules, *targets.parameters}
    if adapted_names != expected:
        raise ConfigError(
            f"student.lora_targets means {labels(expected)} ({len(expected)} layers), but {source} is on "
            f"{labels(adapted_names)} ({len(adapted_names)}); an adapter keeps its layers. Use {labels(adapted_names)}"
        )
    return adapted


def _adapted_weights(adapted: Any) -> set[str]:
    """Return the names of layers and parameters with matrices, as the model below the adapter calls them."""
    from peft.tuners.lora import LoraLayer

    names = set()
    for name, module in adapted.named_modules():
        if isinstance(module, LoraLayer):
            # Adapters on several parameters of a module are nested.
            layer = name.removeprefix("base_model.model.").replace(".base_layer", "")
            parameter = getattr(module, "parameter_name", None)
            names.add(layer if parameter is None else f"{layer}.{parameter}")
    return names


def adapter_summary(adapted: Any) -> str:
    """Return one sentence on what peft's wrapper trains, how many parameters that is, and which experts stay frozen."""
    weights = _adapted_weights(adapted)
    counts = Counter(label for name in weights for label in labels([name]))
    layers = ", ".join(f"{label} ({count})" for label, count in sorted(counts.items()))
    num_trained = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    num_frozen = sum(p.numel() for p in adapted.parameters() if not p.requires_grad)
    frozen = [name for name in fused_experts(adapted.get_base_model()) if name not in weights]
    experts = ""
    if frozen:
        experts = (
            f", among them the experts ({', '.join(labels(frozen))}); add `{EXPERTS}` to student.lora_targets to train "
            "them"
        )
    return f"the adapter trains {num_trained:,} parameters on {layers}; {num_frozen:,} stay frozen{experts}"
