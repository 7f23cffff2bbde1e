"""Attention over slots by a kernel that is told where each row's tokens stand, instead of by a mask.

All tokens of a pass form one packed row, and each slot is read as far as it is filled: no mask, no padding, no repeated
heads. A mask of [B, 1, S, columns] would make `sdpa` repeat keys and values for every query head (it serves grouped
heads by a fused CUDA kernel only without a mask) and read every column that any row needs.
Dimensions: B rows, T tokens of all rows, H heads, G key/value heads, D width of a head, P places of all slots.
"""

import logging
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import Tensor

from stillhouse.serving.slots import computed_type

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)

_MAX_WIDTH: Final = 256
"""Widest head of the flash kernels."""
TOLERANCE: Final = 3e-2
"""Outputs near 1 rounded to bfloat16, from weights rounded to it, differ by some 1e-2."""


class Places(NamedTuple):
    """Where the rows of a packed pass stand, all int32."""

    query_starts: Tensor
    """[B + 1], first token of each row among the T; then T."""
    key_starts: Tensor
    """[B + 1], first place of each row's slot among the P; the last one is never read."""
    key_lengths: Tensor
    """[B], tokens that the slot holds, those of this pass included."""
    max_queries: int
    max_keys: int

    @classmethod
    def of_rows(cls, first_slot: int, starts: Sequence[int], lengths: Sequence[int], num_columns: int) -> "Places":
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
    def of_decoding(cls, positions_B: Tensor, num_columns: int) -> "Places":
        """For one new token of each of the first slots, at `positions_B`; on their device."""
        starts = torch.arange(len(positions_B) + 1, dtype=torch.int32, device=positions_B.device)
        return cls(starts, starts * num_columns, (positions_B + 1).int(), 1, num_columns)


Kernel = Callable[[Tensor, Tensor, Tensor, Places, float | None], Tensor]
"""From queries [T, H, D], keys and values [P, G, D], places and scale to outputs [T, H, D].

A row's last token sees all that its slot holds, and each earlier one a token less than the next.
"""


def kernel_for(model: "PreTrainedModel") -> Kernel | None:
    """The kernel by which the model can attend to slots where it is now; None where it needs masks.

    It takes half precision on CUDA, layers that see everything before a token, and heads as wide for values as for
    keys; and the model has to hand the arguments of a pass down to its attention.
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
    """The flash kernel but for large decode passes; None where Triton cannot compile."""
    try:
        from stillhouse.serving import decode_kernel

        difference = deviation(decode_kernel.decode_kernel, torch.device("cuda"))
        if not difference <= TOLERANCE:
            raise RuntimeError(f"its outputs differ by {difference:.2g} from attention in float32")
    except Exception as error:  # no Triton, no C compiler, a cache folder that cannot be written
        logger.warning("decoding takes FlashAttention's kernel, which is slower, as Triton does not work: %s", error)
        return None

    def kernel(query: Tensor, key: Tensor, value: Tensor, places: Places, scale: float | None) -> Tensor:
        chosen = decode_kernel.decode_kernel if decode_kernel.serves(query, key, places) else flash_kernel
        return chosen(query, key, value, places, scale)

    return kernel


def deviation(kernel: Kernel, device: torch.device) -> float:
    """Largest difference of a kernel's outputs for a decode pass in bfloat16 from the formula in float32."""
    rows, groups, shared, columns, width = 3, 2, 2, 200, 128
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(size, heads, width, generator=generator).to(device, torch.bfloat16)
        for size, heads in ((rows, groups * shared), (rows * columns, groups), (rows * columns, groups))
    )
    places = Places.of_decoding(torch.tensor([0, 65, columns - 1], device=device), columns)
    seen = kernel(query, key, value, places, None).float()
    keys, values = (
        states.float().unflatten(0, (rows, columns)).repeat_interleave(shared, dim=2) for states in (key, value)
    )
    scores = torch.einsum("bhd,bthd->bht", query.float(), keys) * width**-0.5
    hidden = torch.arange(columns, device=device) >= places.key_lengths[:, None]
    weights = scores.masked_fill(hidden[:, None], -torch.inf).softmax(-1)
    return float((seen - torch.einsum("bht,bthd->bhd", weights, values)).abs().max())


def flash_kernel(query: Tensor, key: Tensor, value: Tensor, places: Places, scale: float | None) -> Tensor:
    """FlashAttention 2 as PyTorch carries it (see `Kernel`)."""
    # `varlen_attn`, the public function, takes the filled length of each slot only from PyTorch 2.12 on.
    output, *_ = torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        places.query_starts,
        places.key_starts,
        places.max_queries,
        places.max_keys,
        0.0,
        True,
        False,
        scale=scale,
        seqused_k=places.key_lengths,
    )
    return output


def attend(
    query: Tensor, key: Tensor, value: Tensor, places: Places, kernel: Kernel, options: dict[str, Any]
) -> Tensor:
    """Outputs [1, T, H, D] of a packed row: queries [1, H, T, D], keys and values [1, G, P, D]."""
    refused = [name for name in ("softcap", "s_aux", "position_bias") if options.get(name) is not None]
    if refused:
        raise ValueError(f"attention to slots has no {', '.join(refused)}; load the model with eager attention")
    query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))
    return kernel(query.to(key.dtype), key, value, places, options.get("scaling"))[None]
