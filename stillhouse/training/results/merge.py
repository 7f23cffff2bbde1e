"""Merges a student's adapter into its base, and checks the result against the adapter.

Both are computed in float32 over the base as it is stored, also after QLoRA: rounded to 4 bits, the merged weights
would lose what a weak adapter has learnt (peft issues 1043 and 2321).

How much rounding to bfloat16 changes logits depends on depth and training, so nothing is refused for it. Compared are
the sums with base and adapter before they are rounded, and the weights on the disk with the rounded sums.
Dimensions: T time, V vocabulary.
"""

import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from stillhouse.chat.refs import NO_CODE, SAFE_WEIGHTS, adapter_base, base_revision, resolve_model
from stillhouse.errors import ConfigError, TrainingError
from stillhouse.training.model.adapters import attached_adapter

logger = logging.getLogger(__name__)

TOLERANCE: Final = 1e-4
"""Largest `difference` between two orders of float32 sums.

It was at most 2e-6 in random Qwen3 models of 2 to 32 layers, with adapters from too weak for bfloat16 to ones that
replace the base; rounding to bfloat16 gave up to 0.02 there and 0.07 in a trained model of 135M weights.
"""
_DTYPES: Final = (torch.float32, torch.float16, torch.bfloat16)
_MAX_ROWS: Final = 4
_MAX_TOKENS: Final = 256


@dataclass(frozen=True, slots=True)
class MergeCheck:
    """How far merged weights are from base and adapter, as measured by `difference`."""

    dtype: str
    """Type of the merged weights: the base's own."""
    num_tokens: int
    """Tokens whose logits were compared."""
    difference: float
    """Of the weights as read back from the disk."""
    tolerance: float
    """Largest difference expected, of the rounded sums in memory, and `TOLERANCE`."""
    effect: float
    """How much the adapter changes the logits of the base."""


def merge_into(folder: Path, output: Path, rows: Sequence[Sequence[int]]) -> MergeCheck:
    """Write the merged weights in the base's type, as safetensors with config and generation config.

    Raises:
        ConfigError: `folder` holds no adapter, or its base cannot be loaded, is stored quantised, or is of another type
            than float32, float16 and bfloat16.
        TrainingError: the merged weights differ from base and adapter.
        OSError: the weights cannot be written.
    """
    rows = [list(row[:_MAX_TOKENS]) for row in rows[:_MAX_ROWS]]
    base = _load_base(folder)
    dtype, dtypes = base.dtype, {name: parameter.dtype for name, parameter in base.named_parameters()}
    adapted = _with_adapter(base.float(), folder)
    expected = _logits(adapted, rows)
    with adapted.disable_adapter():
        effect = difference(_logits(adapted, rows), expected)
    merged: PreTrainedModel = adapted.merge_and_unload(safe_merge=True)
    _check(folder, "before they were rounded", "base and adapter do", difference(_logits(merged, rows), expected))
    # An output layer that had to be untied from the embedding is of its type.
    for name, parameter in merged.named_parameters():
        parameter.data = parameter.data.to(dtypes.get(name, dtype)).float()
    rounded = _logits(merged, rows)
    for name, parameter in merged.named_parameters():
        parameter.data = parameter.data.to(dtypes.get(name, dtype))
    with warnings.catch_warnings():
        # transformers reads a property here that it calls deprecated.
        warnings.simplefilter("ignore", FutureWarning)
        merged.save_pretrained(output)
    del base, adapted, merged  # one model at a time
    written = AutoModelForCausalLM.from_pretrained(output, dtype="auto", **SAFE_WEIGHTS).float().eval()
    answers = _logits(written, rows)
    when = f"read back from the disk in {_name(dtype)}"
    _check(folder, when, f"they did before, rounded to {_name(dtype)}", difference(answers, rounded))
    seen = difference(answers, expected)
    if effect > 0 and seen > effect / 2:
        logger.warning(
            "%s: the adapter changes the logits by %.2g, and rounding the merged weights to %s changes them by %.2g: "
            "most of what was learnt is lost in them. Use the adapter",
            *(folder, effect, _name(dtype), seen),
        )
    return MergeCheck(_name(dtype), sum(map(len, rows)), seen, difference(rounded, expected) + TOLERANCE, effect)


def difference(seen: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the root mean square of `seen - expected` by the standard deviation of `expected` over the vocabulary.

    Both are logits [T, V] of each row.
    """
    squares = torch.cat([(a - b).square().flatten() for a, b in zip(seen, expected, strict=True)])
    return (squares.mean() / torch.cat([b.var(-1) for b in expected]).mean()).sqrt().item()


def _load_base(folder: Path) -> PreTrainedModel:
    ref = adapter_base(folder)
    if ref is None:
        raise ConfigError(
            f"{folder}: there is no adapter_config.json, so nothing to merge; expected the folder of a student whose "
            "adapter was trained. A student of which all weights were trained is whole as it is"
        )
    path, revision = resolve_model(ref), base_revision(folder)
    try:
        config = AutoConfig.from_pretrained(path, revision=revision, **NO_CODE)
        if getattr(config, "quantization_config", None) is not None:
            raise ConfigError(
                f"{folder}: the weights of its base {ref!r} are stored quantised, and merged weights would be rounded "
                "again; name the 16-bit model that they were made from in base_model_name_or_path of its "
                "adapter_config.json"
            )
        base = AutoModelForCausalLM.from_pretrained(path, revision=revision, dtype="auto", **SAFE_WEIGHTS).eval()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder}: its base {ref!r} cannot be loaded: {error}") from error
    if base.dtype not in _DTYPES:
        known = ", ".join(map(_name, _DTYPES))
        raise ConfigError(f"{folder}: the weights of its base {ref!r} are {_name(base.dtype)}, expected one of {known}")
    return base


def _with_adapter(base: PreTrainedModel, folder: Path) -> Any:
    adapted = attached_adapter(base, folder).eval()
    ends = (base.get_input_embeddings(), base.get_output_embeddings())
    if base.config.tie_word_embeddings and any(hasattr(end, "base_layer") for end in ends):
        # A merge into one of them must not change the other.
        layer = getattr(ends[1], "base_layer", ends[1])
        layer.weight = nn.Parameter(layer.weight.detach().clone())
        base.config.tie_word_embeddings = False
    return adapted


@torch.no_grad()
def _logits(model: Any, rows: Sequence[Sequence[int]]) -> list[Tensor]:
    return [model(input_ids=torch.tensor([row]), use_cache=False).logits[0] for row in rows]


def _check(folder: Path, when: str, expected: str, seen: float) -> None:
    if not seen <= TOLERANCE:
        raise TrainingError(
            f"{folder}: the merged weights, {when}, do not answer as {expected}: their logits differ by "
            f"{seen:.3g} of the logits' standard deviation, expected at most {TOLERANCE:g}. No merged "
            "weights were written; use the adapter as it is, with student.merge false or without --merge"
        )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
