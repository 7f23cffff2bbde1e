"""Attention to slots: the token at position p of a slot sees that slot's columns up to p.

It is registered as transformers' `sdpa`, which it extends: a pass without slots gets plain `sdpa`, so that one model
may be trained, scored and sampled from, also by several threads. Slots are attended to with masks or, on CUDA, by a
variable-length kernel, which reads each slot as far as it is filled. With a mask, `sdpa` would repeat keys and values
for every query head (its fused CUDA kernel serves grouped heads only without one) and read every column.

Dimensions: B rows, S tokens of each, T tokens of all rows (a packed row) or columns, H heads, G key/value heads,
D width of a head, P places of all slots.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from stillhouse.serving.slots import computed_type

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

logger = logging.getLogger(__name__)

_KINDS: Final = frozenset({"full_attention", "sliding_attention"})
_IMPLEMENTATIONS: Final = frozenset({"sdpa", "eager"})
_UNFOLDED: Final = ("softcap", "s_aux", "position_bias", "cache")
"""Arguments by which a layer asks for more than a softmax over the tokens of a mask."""
_MAX_WIDTH: Final = 256
"""Widest head of the flash kernels."""
TOLERANCE: Final = 3e-2
"""Outputs near 1 rounded to bfloat16, from weights rounded to it, differ by some 1e-2."""


class PackedLayout(NamedTuple):
    """Where the rows of a packed pass lie in the cache, all int32."""

    query_starts: Tensor
    """[B + 1], first token of each row among the T; then T."""
    key_starts: Tensor
    """[B + 1], first place of each row's slot among the P; the last one is never read."""
    key_lengths: Tensor
    """[B], tokens that the slot holds, those of this pass included."""
    max_queries: int
    max_keys: int

    @classmethod
    def of_rows(
        cls, first_slot: int, starts: Sequence[int], lengths: Sequence[int], num_columns: int
    ) -> "PackedLayout":
        """For `lengths[i]` new tokens of slot `first_slot + i`, which holds `starts[i]` before; on the host."""
        ends = [start + length for start, length in zip(starts, lengths, strict=True)]
        return cls(
            torch.tensor([0, *lengths]).cumsum(0).int(),
            torch.arange(first_slot, first_slot + len(starts) + 1, dtype=torch.int32) * num_columns,
            torch.tensor(ends, dtype=torch.int32),
            max(lengths),
            max(ends),
        )

    @classmethod
    def of_decoding(cls, positions_B: Tensor, num_columns: int) -> Self:
        """For one new token of each of the first slots, at `positions_B`; on their device."""
        starts = torch.arange(len(positions_B) + 1, dtype=torch.int32, device=positions_B.device)
        return cls(starts, starts * num_columns, (positions_B + 1).int(), 1, num_columns)


Kernel = Callable[[Tensor, Tensor, Tensor, PackedLayout, float | None], Tensor]
"""From queries [T, H, D], keys and values [P, G, D], layout and scale to outputs [T, H, D].

A row's last token sees all that its slot holds, and each earlier one a token less than the next.
"""


def kernel_for(model: "PreTrainedModel") -> Kernel | None:
    """The kernel that serves the model on its current device; None if it needs masks.

    Kernels need half precision on CUDA, full causal attention in all layers, heads as wide for values as for keys, and
    a model that passes keyword arguments on to its attention.
    """
    config = model.config.get_text_config()
    device = model.device
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] < 8:
        return None
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    serves = (
        config._attn_implementation == "sdpa"
        and model._supports_attention_backend
        and kinds == {"full_attention"}
        and not (getattr(config, "sliding_window", None) and not hasattr(config, "layer_types"))
        and getattr(config, "attn_logit_softcapping", None) is None
        and not hasattr(config, "v_head_dim")
        and width % 8 == 0
        and width <= _MAX_WIDTH
        and computed_type(model.get_output_embeddings().weight) in (torch.float16, torch.bfloat16)
    )
    return (_triton_kernel() or flash_kernel) if serves else None


@cache
def _triton_kernel() -> Kernel | None:
    """Triton's kernel for large decode passes and the flash kernel for others; None if Triton cannot compile."""
    try:
        from stillhouse.serving import decode_kernel

        difference = deviation(decode_kernel.decode_kernel, torch.device("cuda"))
        if not difference <= TOLERANCE:
            raise RuntimeError(f"its outputs differ by {difference:.2g} from attention in float32")
    except Exception as error:  # no Triton, no C compiler, a cache folder that cannot be written
        logger.warning("decoding takes FlashAttention's kernel, which is slower, as Triton does not work: %s", error)
        return None

    def kernel(query: Tensor, key: Tensor, value: Tensor, layout: PackedLayout, scale: float | None) -> Tensor:
        chosen = decode_kernel.decode_kernel if decode_kernel.serves(query, key, layout) else flash_kernel
        return chosen(query, key, value, layout, scale)

    return kernel


def deviation(kernel: Kernel, device: torch.device) -> float:
    """Largest difference of a kernel's outputs for a decode pass in bfloat16 from the formula in float32."""
    rows, groups, shared, columns, width = 3, 2, 2, 200, 128
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(size, heads, width, generator=generator).to(device, torch.bfloat16)
        for size, heads in ((rows, groups * shared), (rows * columns, groups), (rows * columns, groups))
    )
    layout = PackedLayout.of_decoding(torch.tensor([0, 65, columns - 1], device=device), columns)
    seen = kernel(query, key, value, layout, None).float()
    keys, values = (
        states.float().unflatten(0, (rows, columns)).repeat_interleave(shared, dim=2) for states in (key, value)
    )
    scores = torch.einsum("bhd,bthd->bht", query.float(), keys) * width**-0.5
    hidden = torch.arange(columns, device=device) >= layout.key_lengths[:, None]
    weights = scores.masked_fill(hidden[:, None], -torch.inf).softmax(-1)
    return float((seen - torch.einsum("bht,bthd->bhd", weights, values)).abs().max())


def flash_kernel(query: Tensor, key: Tensor, value: Tensor, layout: PackedLayout, scale: float | None) -> Tensor:
    """FlashAttention 2 as PyTorch carries it (see `Kernel`)."""
    # `varlen_attn`, the public function, takes the filled length of each slot only from PyTorch 2.12 on.
    starts, most = (layout.query_starts, layout.key_starts), (layout.max_queries, layout.max_keys)
    dropout, is_causal, returns_mask = 0.0, True, False
    output, *_ = torch.ops.aten._flash_attention_forward(
        query, key, value, *starts, *most, dropout, is_causal, returns_mask, scale=scale, seqused_k=layout.key_lengths
    )
    return output


def slot_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    layout: PackedLayout | None = None,
    kernel: Kernel | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The attention that transformers calls in each layer: `sdpa`, without copies of keys, or attention by a kernel.

    Queries are [B, H, S, D], keys and values [B, G, T, D], and the mask is as `slot_masks` makes it. With `layout` and
    `kernel`, the tokens are one packed row, [1, H, T, D], attend to the places of all slots, [1, G, P, D], and the mask
    is a placeholder. `options` are what the layer asks for: `scaling`, `sliding_window` and more.

    Returns:
        [B, S, H, D] and, as of `sdpa`, no weights.

    Raises:
        ValueError: If a layer asks a kernel for more than a softmax over the tokens before each.
    """
    if layout is not None and kernel is not None:
        refused = [name for name in ("softcap", "s_aux", "position_bias") if options.get(name) is not None]
        if refused:
            raise ValueError(f"attention to slots has no {', '.join(refused)}; load the model with eager attention")
        query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))
        return kernel(query.to(key.dtype), key, value, layout, options.get("scaling"))[None], None
    with _small_products(query):
        return _masked_attention(module, query, key, value, attention_mask, **options)


def _masked_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Attention by `sdpa`, for one token of each row without repeated keys and values."""
    groups = query.shape[1] // key.shape[1]
    folds = query.shape[2] == 1 and groups > 1 and attention_mask is not None and attention_mask.shape[1] == 1
    if not folds or options.get("dropout") or any(options.get(name) is not None for name in _UNFOLDED):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    # The heads that share keys and values become tokens of one head, so that nothing is repeated for them.
    folded = query.squeeze(2).unflatten(1, (-1, groups))
    output = scaled_dot_product_attention(folded, key, value, attn_mask=attention_mask, scale=options.get("scaling"))
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
    """What a transformers model takes as a ready-made 4D `attention_mask`, [B, 1, S, num_columns].

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
