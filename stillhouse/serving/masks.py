"""Masks of attention to slots: the token at position p of a slot sees that slot's columns up to p."""

from typing import TYPE_CHECKING, Final

import torch

from stillhouse.attention import ATTENTION

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_KINDS: Final = frozenset({"full_attention", "sliding_attention"})
_IMPLEMENTATIONS: Final = frozenset({ATTENTION, "sdpa", "eager"})


def slot_masks(
    config: "PreTrainedConfig", positions_BS: torch.Tensor, num_columns: int, dtype: torch.dtype = torch.float32
) -> torch.Tensor | dict[str, torch.Tensor]:
    """Return the ready-made 4D `attention_mask` of a transformers model, [B, 1, S, num_columns].

    One mask when all layers attend alike; one by layer type when full and sliding layers alternate. `positions_BS` are
    the positions of the input tokens in their slots, `num_columns` the columns of the cache that attention sees, and
    `dtype` is the model's, which an additive mask (eager attention) must have. Raise ValueError if a layer is neither
    full nor sliding attention (recurrent states cannot be cut into slots), or the attention implementation takes no
    mask.
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
