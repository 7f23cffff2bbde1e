"""The function that transformers calls in each layer, and how a model comes to it."""

from typing import Any, Final

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from stillhouse.attention.segments import Segments, segment_attention
from stillhouse.attention.slots import slot_attention

ATTENTION: Final = "stillhouse"
"""Name of `attention` among the implementations of transformers. A saved config names none."""


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    segments: Segments | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute causal attention within each segment of a packed row; without segments `sdpa`, as `slot_attention` does.

    Segments are an argument of the forward pass, which models pass on to every layer, so that a layer recomputed by
    gradient checkpointing, in a thread of the backward pass, has them too. Queries are [B, H, S, D], keys and values
    [B, G, T, D]; `options` are further arguments of the layer, such as `scaling` and `sliding_window`.

    Returns:
        [B, S, H, D] and, as of `sdpa`, no weights.

    Raises:
        TrainingError: as `segment_attention`.
    """
    if segments is None:
        return slot_attention(module, query, key, value, attention_mask, **options), None
    return segment_attention(module, query, key, value, attention_mask, segments, options), None


AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


def use_attention(causal_lm: PreTrainedModel) -> PreTrainedModel:
    """Have the layers that compute `sdpa` compute `attention`; return the model."""
    for module in causal_lm.modules():
        # Families that call `sdpa` themselves, such as Falcon, cannot be given another function.
        can_be_set = isinstance(module, PreTrainedModel) and module._can_set_attn_implementation()
        if can_be_set and module.config._attn_implementation == "sdpa":
            module.config._attn_implementation_internal = ATTENTION
    return causal_lm
