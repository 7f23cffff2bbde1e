"""Attention that keeps the segments of a packed row apart.

Dimensions: T time, H heads, D width of a head.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from stillhouse.attention.products import MAX_FLOAT32_LENGTH, segment_products
from stillhouse.attention.slots import BEYOND_SOFTMAX
from stillhouse.errors import TrainingError

_MAX_VARLEN_WIDTH: Final = 256
"""Widest head of the flash kernels."""


@dataclass(frozen=True, slots=True)
class Segments:
    """Positions of the samples in a packed row."""

    starts: Tensor
    """int32 [S + 1]: the first position of each, and the end of the last."""
    lengths: tuple[int, ...]
    """Tokens of each, available without synchronising with the device."""
    max_length: int


def segment_arguments(segments: Segments | None) -> dict[str, Any]:
    """Return the further arguments of the forward pass of a packed row; none without segments.

    The mask is a placeholder: given one of four dimensions, transformers does not build one of [T, T].
    """
    if segments is None:
        return {}
    mask = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=segments.starts.device)
    return {"segments": segments, "attention_mask": mask}


def segment_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    segments: Segments,
    options: Mapping[str, Any],
) -> Tensor:
    """Compute [1, T, H, D] of a packed row; see `function.attention`.

    Raises:
        TrainingError: the layer needs something that attention by segments does not support.
    """
    refused = [name for name in BEYOND_SOFTMAX if options.get(name) is not None]
    if attention_mask is not None and attention_mask.numel() > 1:
        refused.append("a mask of its own")
    # A compiled layer has been through the check of packing; configs cannot be traced.
    if not torch.compiler.is_compiling() and _window_in_mask(module, options):
        refused.append("a window in its mask alone")
    if refused:
        raise TrainingError(
            f"{type(module).__name__} asks for {', '.join(refused)}, which attention by segments does not have; "
            "its rows are to be padded"
        )
    if _flash_applies(query, value, options):
        return _flash(query, key, value, segments, options)
    return _by_segment(module, query, key, value, segments, options)


def _window_in_mask(module: nn.Module, options: Mapping[str, Any]) -> bool:
    """Return whether the layer sees a window by its config and does not pass it on (PhiMoE; chunks of Llama 4)."""
    config = getattr(module, "config", None)
    if config is None or options.get("sliding_window") is not None:
        return False
    kinds, index = getattr(config, "layer_types", None), getattr(module, "layer_idx", None)
    kind = kinds[index] if kinds and index is not None and index < len(kinds) else None
    if kind == "full_attention":
        return False
    return (
        getattr(config, "attention_chunk_size" if kind == "chunked_attention" else "sliding_window", None) is not None
    )


def _flash_applies(query: Tensor, value: Tensor, options: Mapping[str, Any]) -> bool:
    width = query.shape[-1]
    return (
        query.is_cuda
        and computed_type(query) in (torch.float16, torch.bfloat16)
        and width == value.shape[-1]
        and width <= _MAX_VARLEN_WIDTH
        and width % 8 == 0
        and not options.get("dropout")
        and _has_flash_kernels(query.device)
    )


# Evaluated while a block is compiled, not traced: torch 2.11 cannot trace the properties of a device.
@torch.compiler.assume_constant_result
def _has_flash_kernels(device: torch.device) -> bool:
    return torch.cuda.get_device_properties(device).major >= 8


def _flash(query: Tensor, key: Tensor, value: Tensor, segments: Segments, options: Mapping[str, Any]) -> Tensor:
    window = options.get("sliding_window")
    # Autocast does not cover the kernel.
    query, key, value = (x[0].transpose(0, 1).to(computed_type(x)) for x in (query, key, value))
    output = varlen_attn(
        *(query, key, value, segments.starts, segments.starts, segments.max_length, segments.max_length),
        scale=options.get("scaling"),
        # Tokens to the left of a token; transformers' window counts the token itself.
        window_size=(-1 if window is None else window - 1, 0),
        # The kernels group query heads by themselves; this relaxes a check of their number.
        enable_gqa=True,
    )
    assert isinstance(output, Tensor)
    return output[None]


def _products_apply(query: Tensor, value: Tensor, segments: Segments, options: Mapping[str, Any]) -> bool:
    window = options.get("sliding_window")
    return (
        query.device.type == "cpu"
        and query.shape[-1] == value.shape[-1]
        and not options.get("dropout")
        and (window is None or segments.max_length <= window)
        and (computed_type(query).itemsize < 4 or segments.max_length <= MAX_FLOAT32_LENGTH)
    )


@torch.compiler.disable
def _by_segment(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, segments: Segments, options: Mapping[str, Any]
) -> Tensor:
    """Compute plain products where they apply, else one call of `sdpa` for each segment.

    Such calls take 0.5 to 1.4 of the time of one call for a padded rectangle, one call with a block-diagonal mask 50
    times as long. Never compiled, since each row has other lengths.
    """
    if _products_apply(query, value, segments, options):
        scale = options.get("scaling") or query.shape[-1] ** -0.5
        query, key, value = (x[0].to(computed_type(x)) for x in (query, key, value))
        return segment_products(query, key, value, segments.lengths, scale)[None]
    window = options.get("sliding_window")
    queries, keys, values = (x.split(list(segments.lengths), dim=2) for x in (query, key, value))
    outputs = [
        sdpa_attention_forward(module, q, k, v, _window_mask(q, window), **options)[0]
        for q, k, v in zip(queries, keys, values, strict=True)
    ]
    return torch.cat(outputs, dim=1)


def _window_mask(query: Tensor, window: int | None) -> Tensor | None:
    """Return True where a token sees another: the last `window` up to itself; None where it sees all before it."""
    length = query.shape[2]
    if window is None or length <= window:
        return None
    return torch.ones(length, length, dtype=torch.bool, device=query.device).tril().triu(1 - window)


def computed_type(x: Tensor) -> torch.dtype:
    """Return the type in which a matrix product with `x` is computed here, autocast considered."""
    device_type = x.device.type
    return torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else x.dtype
