"""Attention to slots: the token at position p of a slot sees that slot's columns up to p.

It is registered as transformers' `sdpa`, which it extends: one model may be trained, scored and sampled from, also by
several threads. With a mask, `sdpa` would repeat keys and values for every query head.

Dimensions: B rows, S tokens of each, T columns, H heads, G key/value heads, D width of a head.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_KINDS: Final = frozenset({"full_attention", "sliding_attention"})
_IMPLEMENTATIONS: Final = frozenset({"sdpa", "eager"})
_UNFOLDED: Final = ("softcap", "s_aux", "position_bias", "cache")
"""Arguments by which a layer asks for more than a softmax over the tokens of a mask."""


def slot_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Compute the attention that transformers calls in each layer: `sdpa`, without copies of keys and values.

    Queries are [B, H, S, D], keys and values [B, G, T, D], and the mask is as `slot_masks` makes it. `options` are what
    the layer asks for: `scaling`, `sliding_window` and more.

    Returns:
        [B, S, H, D] and, as of `sdpa`, no weights.
    """
    groups = query.shape[1] // key.shape[1]
    folds = query.shape[2] == 1 and groups > 1 and attention_mask is not None and attention_mask.shape[1] == 1
    with _small_products(query):
        if not folds or options.get("dropout") or any(options.get(name) is not None for name in _UNFOLDED):
            return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        # The heads that share keys and values become tokens of one head, so that nothing is repeated for them.
        folded = query.squeeze(2).unflatten(1, (-1, groups))
        output = scaled_dot_product_attention(
            folded, key, value, attn_mask=attention_mask, scale=options.get("scaling")
        )
    return output.flatten(1, 2)[:, None], None


@contextmanager
def _small_products(query: Tensor) -> Iterator[None]:
    """Keeps the float32 products of the block from oneDNN, where those of a process go to it.

    Torch's attention on a CPU makes many small products, and oneDNN takes tens of microseconds to begin one: 32 tokens
    that attend to 117 others each with 2 heads of width 32 took 1.18 ms, and 0.06 ms by MKL. Sampling as a whole takes
    0.35 to 0.75 of the CPU time (8 to 128 rows, models of width 64 to 1,024, one core of an AMD EPYC).
    """
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    chosen = matmul.fp32_precision
    if query.device.type != "cpu" or chosen == "none":
        yield
        return
    matmul.fp32_precision = "none"
    try:
        yield
    finally:
        matmul.fp32_precision = chosen


AttentionInterface.register("sdpa", slot_attention)


def slot_masks(
    config: "PreTrainedConfig", positions_BS: torch.Tensor, num_columns: int, dtype: torch.dtype = torch.float32
) -> torch.Tensor | dict[str, torch.Tensor]:
    """Return what a transformers model takes as a ready-made 4D `attention_mask`, [B, 1, S, num_columns].

    One mask when all layers attend alike; one by layer type when full and sliding layers alternate. `positions_BS` are
    the positions of the input tokens in their slots, `num_columns` the columns of the cache that attention sees, and
    `dtype` is the model's, which an additive mask (eager attention) must have.

    Raises:
        ValueError: If a layer is neither full nor sliding attention (recurrent states cannot be cut into slots), or the
            attention implementation takes no mask.
    """
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if not hasattr(config, "layer_types") and getattr(config, "sliding_window", None):
        kinds = {"sliding_attention"}
    implementation = config._attn_implementation
    if not kinds <= _KINDS or implementation not in _IMPLEMENTATIONS:
        raise ValueError(
            f"model type {config.model_type!r} has layers {sorted(kinds)} and attention {implementation!r}; "
            f"expected layers of {sorted(_KINDS)} and attention of {sorted(_IMPLEMENTATIONS)}"
        )
    column = torch.arange(num_columns, device=positions_BS.device)
    position = positions_BS[:, None, :, None]
    masks: dict[str, torch.Tensor] = {"full_attention": column <= position}
    if "sliding_attention" in kinds:
        masks["sliding_attention"] = masks["full_attention"] & (column > position - config.sliding_window)
    if implementation == "eager":
        lowest = torch.finfo(dtype).min
        masks = {
            kind: torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, lowest)
            for kind, mask in masks.items()
        }
    return masks[next(iter(kinds))] if len(kinds) == 1 else masks
