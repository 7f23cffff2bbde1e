"""The weights that an adapter is on: linear layers of the text model, and weights that peft calls parameters.

`all-linear` means every linear layer that computes text: not towers and projectors of images and sound, routers of
experts, the embedding and the output layer. Experts that a model holds as one fused tensor are adapted where they are
named: peft then computes all of W + scale * B A in each pass, has no dropout there, and vLLM loads no such
adapter. "LoRA Without Regret" (thinkingmachines.ai/blog/lora, 2025) adapts them too.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from stillhouse.errors import ConfigError

ALL_LINEAR: Final = "all-linear"
EXPERTS: Final = "experts"
_LEFT_OUT: Final = ("gate", "router", "shared_expert_gate", "altup", "altup_projections", "altup_unembed_projections")
"""Routers of experts, and the layers by which Gemma 3n mixes its streams."""


@dataclass(frozen=True, slots=True)
class AdapterTargets:
    """Full names of what gets an adapter, in the model's order."""

    modules: tuple[str, ...]
    """Linear layers."""
    parameters: tuple[str, ...]
    """Weights that peft's `target_parameters` takes: fused experts, and layers whose names it reads as experts'."""


def adapter_targets(causal_lm: PreTrainedModel, targets: tuple[str, ...]) -> AdapterTargets:
    """Return what the adapter is on under `student.lora_targets`, over a model without one.

    A target is a name of linear layers or fused experts, in full or by its last parts; `all-linear`; or `experts`.

    Raises:
        ConfigError: a target means nothing that can be adapted, or the output or embedding layer.
    """
    linear, unsupported = _linear_layers(causal_lm)
    experts = fused_experts(causal_lm)
    common = [name for name in linear if not set(_LEFT_OUT) & set(name.split("."))]
    layers: set[str] = set(common if ALL_LINEAR in targets else ())
    parameters: set[str] = set()
    for target in targets:
        if target == ALL_LINEAR:
            continue
        matched = {name for name in linear if matches(target, name)}
        fused = {name for name in experts if target == EXPERTS or matches(target, name.removesuffix(".weight"))}
        if matched and ALL_LINEAR in targets:
            raise ConfigError(
                f"student.lora_targets names {target!r} beside `{ALL_LINEAR}`; among names of linear layers "
                f"`{ALL_LINEAR}` stands alone"
            )
        if not (matched or fused):
            raise ConfigError(_refusal(causal_lm, target, unsupported, [*common, *experts]))
        layers |= matched
        # `up_proj` means the layers of this name, where there are any, and `experts.up_proj` the experts.
        parameters |= set() if matched else fused
    modules, renamed = _split(causal_lm, linear, layers)
    return AdapterTargets(modules, (*renamed, *(name for name in experts if name in parameters)))


def matches(target: str, name: str) -> bool:
    return name == target or name.endswith(f".{target}")


def labels(names: Iterable[str]) -> list[str]:
    """Return the short names that `student.lora_targets` takes: last parts, for fused experts the last two."""
    return sorted({_label(name) for name in names})


def _label(name: str) -> str:
    layer, _, last = name.rpartition(".")
    return (
        f"{EXPERTS}.{last}" if layer.rpartition(".")[2] == EXPERTS else name.removesuffix(".weight").rpartition(".")[2]
    )


def _linear_layers(causal_lm: PreTrainedModel) -> tuple[list[str], list[str]]:
    """Return the linear layers to adapt, and those whose adapters would be bypassed: ends, parts of mixers."""
    output, embedding = causal_lm.get_output_embeddings(), causal_lm.get_input_embeddings()
    mixers = tuple(f"{name}." for name, module in causal_lm.named_modules() if hasattr(module, "ssm_state_size"))
    text = _text_modules(causal_lm)
    linear, unsupported = [], []
    for name, module in causal_lm.named_modules():
        # Kernels of Mamba read the weights of all layers of a mixer but the first.
        is_read = name.startswith(mixers) and not name.endswith(".in_proj")
        if module is output or module is embedding or (is_read and isinstance(module, nn.Linear)):
            unsupported.append(name)
        elif isinstance(module, nn.Linear | Conv1D) and id(module) in text:
            linear.append(name)
    return linear, unsupported


def _text_modules(causal_lm: PreTrainedModel) -> set[int]:
    """Return the ids of the modules of the text model, which in models of images or sound has a config of its own."""
    kind = causal_lm.config.get_text_config().model_type
    models = [m for m in causal_lm.modules() if isinstance(m, PreTrainedModel) and m.config.model_type == kind]
    return {id(module) for model in models or [causal_lm] for module in model.modules()}


def fused_experts(causal_lm: PreTrainedModel) -> list[str]:
    """Return the names of the tensors [experts, ...] of the text model, below an adapter as without it."""
    text = _text_modules(causal_lm)
    return [
        f"{path.replace('.base_layer', '')}.{name}"
        for path, module in causal_lm.named_modules()
        if "Experts" in type(module).__name__ and id(module) in text
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.dim() == 3
    ]


def _split(causal_lm: PreTrainedModel, linear: list[str], layers: set[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the layers that peft adapts by name, and the weights of those that it takes for experts of transformers 4.

    In some mixtures of experts peft replaces the target `gate_proj`, also of a dense layer, by the fused experts.
    """
    from peft import LoraConfig
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers

    # All of the model's, since peft refuses `gate_proj` without `up_proj`.
    settings = LoraConfig(target_modules=linear)
    convert_peft_config_for_transformers(settings, causal_lm, None)
    kept = set(settings.target_modules or ())
    return tuple(n for n in linear if n in layers & kept), tuple(f"{n}.weight" for n in linear if n in layers - kept)


def _refusal(causal_lm: PreTrainedModel, target: str, unsupported: list[str], names: list[str]) -> str:
    ends = (causal_lm.get_output_embeddings(), causal_lm.get_input_embeddings())
    expected = f"expected some of {labels(names)}, or `{ALL_LINEAR}`"
    matched = [causal_lm.get_submodule(name) for name in unsupported if matches(target, name)]
    if any(module is end for module in matched for end in ends):
        return (
            f"student.lora_targets names {target!r}: the loss reads the weight of the output layer itself, which "
            f"small models share with the embedding, so that an adapter there would be left out of it; {expected}"
        )
    if matched:
        return (
            f"student.lora_targets names {target!r}: kernels of Mamba read the weight of this layer itself, so that "
            f"an adapter there would be left out; {expected}"
        )
    return (
        f"student.lora_targets names {target!r}, which no linear layer of {type(causal_lm).__name__} that computes "
        f"text is called; {expected}"
    )


def exact_suffixes(causal_lm: nn.Module, modules: tuple[str, ...], suffixes: Iterable[str]) -> list[str]:
    """Return those of `suffixes` that name `modules` where they mean nothing else, otherwise their full names."""
    naming = [suffix for suffix in suffixes if any(matches(suffix, name) for name in modules)]
    meant = [name for name, _ in causal_lm.named_modules() if any(matches(suffix, name) for suffix in naming)]
    return naming if meant == list(modules) else list(modules)
