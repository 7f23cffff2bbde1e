"""Attention of one new token of each row to its slot, which reads keys and values at the speed of the memory.

FlashAttention 2 lays out the few query heads that share keys and values as a tile of 64 or 128 queries, and so computes
32 to 64 times what is asked for: for a batch large enough to fill the device without splitting rows, the tensor cores
then take longer than the memory. Here the tile is 16 queries, the least that they multiply.
Dimensions as in `attention`.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from stillhouse.serving.attention import PackedLayout

_LEAST_TILE = 16


def serves(query: Tensor, key: Tensor, layout: PackedLayout) -> bool:
    """Whether the pass is one of decoding with a program for each multiprocessor at least."""
    num_programs = (len(layout.query_starts) - 1) * key.shape[1]
    return (
        layout.max_queries == 1
        and query.shape[-1] in (32, 64, 128, 256)
        and num_programs >= torch.cuda.get_device_properties(query.device).multi_processor_count
    )


def decode_kernel(query: Tensor, key: Tensor, value: Tensor, layout: PackedLayout, scale: float | None) -> Tensor:
    """See `Kernel`; every row has one token."""
    num_rows, num_heads, width = query.shape
    groups = num_heads // key.shape[1]
    output = torch.empty(num_rows, num_heads, width, dtype=query.dtype, device=query.device)
    with torch.cuda.device_of(query):
        # Heads of a row, whose keys are neighbours in memory, run beside each other.
        _attend[key.shape[1], num_rows](
            query,
            key,
            value,
            output,
            layout.key_starts,
            layout.key_lengths,
            (width**-0.5 if scale is None else scale) * math.log2(math.e),
            *query.stride()[:2],
            *key.stride()[:2],
            *value.stride()[:2],
            *output.stride()[:2],
            GROUPS=groups,
            TILE=max(_LEAST_TILE, triton.next_power_of_2(groups)),
            WIDTH=width,
            BLOCK=64 if width <= 128 else 32,
            num_warps=4,
            num_stages=3,
        )
    return output


@triton.jit
def _attend(  # type: ignore[no-untyped-def]
    query, key, value, output, key_starts, key_lengths, scale,
    query_row, query_head, key_place, key_head, value_place, value_head, output_row, output_head,
    GROUPS: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    head, row = tl.program_id(0), tl.program_id(1)
    start = tl.load(key_starts + row).to(tl.int64)
    length = tl.load(key_lengths + row)
    group = tl.arange(0, TILE)
    column = tl.arange(0, WIDTH)
    place = tl.arange(0, BLOCK)
    heads = head * GROUPS + group
    is_head = (group < GROUPS)[:, None]
    q = tl.load(query + row * query_row + heads[:, None] * query_head + column[None, :], mask=is_head, other=0.0)
    keys = key + start * key_place + head * key_head
    values = value + start * value_place + head * value_head
    largest = tl.full([TILE], float("-inf"), tl.float32)
    total = tl.zeros([TILE], tl.float32)
    weighted = tl.zeros([TILE, WIDTH], tl.float32)
    for first in range(0, length, BLOCK):
        places = first + place
        is_held = places < length
        k = tl.load(keys + places[None, :] * key_place + column[:, None], mask=is_held[None, :], other=0.0)
        scores = tl.where(is_held[None, :], tl.dot(q, k) * scale, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        decay = tl.exp2(largest - new_largest)
        weights = tl.exp2(scores - new_largest[:, None])
        v = tl.load(values + places[:, None] * value_place + column[None, :], mask=is_held[:, None], other=0.0)
        weighted = weighted * decay[:, None] + tl.dot(weights.to(v.dtype), v)
        total = total * decay + tl.sum(weights, 1)
        largest = new_largest
    result = (weighted / total[:, None]).to(output.dtype.element_ty)
    tl.store(output + row * output_row + heads[:, None] * output_head + column[None, :], result, mask=is_head)
