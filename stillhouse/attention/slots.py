"""Attention to slots: the token at position p of a slot sees that slot's columns up to p.

With a mask, `sdpa` would repeat keys and values for every query head.

Dimensions: B rows, S tokens of each, T columns, H heads, G key/value heads, D width of a head.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers.integrations.sdpa_attention import sdpa_attention_forward

BEYOND_SOFTMAX: Final = ("softcap", "s_aux", "position_bias", "cache")
"""Arguments by which a layer asks for more than a softmax over the tokens that it sees."""


def slot_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> Tensor:
    """Compute [B, S, H, D] as `sdpa` does, without copies of keys and values; see `function.attention`."""
    groups = query.shape[1] // key.shape[1]
    folds = query.shape[2] == 1 and groups > 1 and attention_mask is not None and attention_mask.shape[1] == 1
    with _small_products(query):
        if not folds or options.get("dropout") or any(options.get(name) is not None for name in BEYOND_SOFTMAX):
            return sdpa_attention_forward(module, query, key, value, attention_mask, **options)[0]
        # The heads that share keys and values become tokens of one head, so that nothing is repeated for them.
        folded = query.squeeze(2).unflatten(1, (-1, groups))
        output = scaled_dot_product_attention(
            folded, key, value, attn_mask=attention_mask, scale=options.get("scaling")
        )
    return output.flatten(1, 2)[:, None]


@contextmanager
def _small_products(query: Tensor) -> Iterator[None]:
    """Keep the float32 products of the block from oneDNN, where those of a process go to it.

    Torch's attention on a CPU makes many small products, which oneDNN takes tens of microseconds to begin: sampling
    takes 0.35 to 0.75 of the CPU time without it (8 to 128 rows, models of width 64 to 1,024).
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
