"""Attention to slots: the token at position p of a slot sees that slot's columns up to p.

transformers knows it as `sdpa`, the attention it extends: a pass that says nothing of slots gets that attention, so
that the same model may be trained, scored and sampled from, by several threads too. Training extends it in turn.
Dimensions: B rows, S tokens of each, H heads, G key/value heads, T columns, D width of a head.
"""

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from stillhouse.serving.ragged import Kernel, Places, attend

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_KINDS: Final = frozenset({"full_attention", "sliding_attention"})
_IMPLEMENTATIONS: Final = frozenset({"sdpa", "eager"})
_UNFOLDED: Final = ("softcap", "s_aux", "position_bias", "cache")
"""Arguments by which a layer asks for more than a softmax over the tokens of a mask."""


def slot_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    places: Places | None = None,
    kernel: Kernel | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The attention that transformers calls in each layer: `sdpa`, without copies of keys, or attention by a kernel.

    Args:
        module: The attention layer.
        query: [B, H, S, D]; [1, H, T, D] for a packed row.
        key: [B, G, T, D]; [1, G, P, D], the places of all slots, for a packed row.
        value: As `key`.
        attention_mask: As `slot_masks` makes it; a placeholder for a packed row.
        places: Where the tokens of a packed row stand.
        kernel: By which a packed row attends.
        options: What the layer asks for: `scaling`, `sliding_window` and more.

    Returns:
        [B, S, H, D] and, as of `sdpa`, no weights.

    Raises:
        ValueError: If a layer asks a kernel for more than a softmax over the tokens before each.
    """
    if places is not None and kernel is not None:
        return attend(query, key, value, places, kernel, options), None
    groups = query.shape[1] // key.shape[1]
    folds = query.shape[2] == 1 and groups > 1 and attention_mask is not None and attention_mask.shape[1] == 1
    if not folds or options.get("dropout") or any(options.get(name) is not None for name in _UNFOLDED):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    # The heads that share keys and values become tokens of one head, so that nothing is repeated for them.
    folded = query.squeeze(2).unflatten(1, (-1, groups))
    output = scaled_dot_product_attention(folded, key, value, attn_mask=attention_mask, scale=options.get("scaling"))
    return output.flatten(1, 2)[:, None], None


AttentionInterface.register("sdpa", slot_attention)


def slot_masks(
    config: "PreTrainedConfig", positions_BS: torch.Tensor, num_columns: int, dtype: torch.dtype = torch.float32
) -> torch.Tensor | dict[str, torch.Tensor]:
    """What a transformers model takes as a ready-made 4D `attention_mask`, [B, 1, S, num_columns].

    One mask when all layers attend alike; one by layer type when full and sliding layers alternate.

    Args:
        config: The text model's config.
        positions_BS: Position of each input token in its slot.
        num_columns: Columns of the cache that are shown to attention.
        dtype: The model's, which an additive mask (eager attention) must have.

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
