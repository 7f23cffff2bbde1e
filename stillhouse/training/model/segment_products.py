"""Causal attention within the segments of a packed row by plain matrix products: the faster way on a CPU.

torch's flash attention works in blocks that short sequences do not fill. Products over all heads at once, of 128
queries with what they may see, take 0.4 to 0.9 of its CPU time for segments of 100 to 500 tokens (forward and backward,
4 and 16 heads, float32 by oneDNN), and in bfloat16 0.6 to 0.7 at 1,000 and 2,000; in float32 it is 1.0 to 1.2 at 1,000
and up to 1.5 at 2,000. Probabilities are recomputed in the backward pass, so that no more is kept than flash
attention keeps.

Dimensions: T time, L tokens of a segment, H query heads, K key and value heads, G query heads for each, D width.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from stillhouse.training.head.softmax import wide

MAX_FLOAT32_LENGTH: Final = 1024
"""Longest segment for which products are the faster way in float32."""
_TILE: Final = 128
"""Queries that are multiplied at once; later keys are not computed for them."""


def segment_products(query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int], scale: float) -> Tensor:
    """softmax(scale q k^T) v of each token over those of its segment up to itself, as [T, H, D].

    The query is [H, T, D]; key and value are [K, T, D], where H is a multiple of K; `lengths` sum up to T. The softmax
    is computed in float32 at least, the products in the type of the inputs.
    """
    output: Tensor = _SegmentProducts.apply(query, key, value, lengths, scale)
    return output


class _SegmentProducts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int], scale: float) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.lengths, ctx.scale = lengths, scale
        output = query.new_empty(query.shape[1], query.shape[0], query.shape[2]).transpose(0, 1)
        for rows, columns in _tiles(lengths):
            q, k, v = _grouped(query[:, rows], key), key[:, columns], value[:, columns]
            output[:, rows] = _ungrouped(_probabilities(q, k, scale) @ v, query)
        return output.transpose(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value = ctx.saved_tensors
        d_query, d_key, d_value = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
        gradient = gradient.transpose(0, 1)
        for rows, columns in _tiles(ctx.lengths):
            q, k, v = _grouped(query[:, rows], key), key[:, columns], value[:, columns]
            d_out = _grouped(gradient[:, rows], key)
            p = _probabilities(q, k, ctx.scale)
            d_value[:, columns] += p.mT @ d_out
            d_p = (d_out @ v.mT).to(wide(p.dtype))
            d_p.sub_((d_p * p).sum(dim=-1, keepdim=True)).mul_(p).mul_(ctx.scale)
            d_scores = d_p.to(p.dtype)
            d_query[:, rows] = _ungrouped(d_scores @ k, query)
            d_key[:, columns] += d_scores.mT @ q
        return d_query, d_key, d_value, None, None


def _tiles(lengths: Sequence[int]) -> Iterator[tuple[slice, slice]]:
    """Yields ranges of a segment's tokens, with the range of tokens that they attend to."""
    first = 0
    for length in lengths:
        for begin in range(0, length, _TILE):
            end = first + min(begin + _TILE, length)
            yield slice(first + begin, end), slice(first, end)
        first += length


def _grouped(rows: Tensor, key: Tensor) -> Tensor:
    """[H, L, D] as [K, G L, D]."""
    return rows.reshape(key.shape[0], -1, key.shape[2])


def _ungrouped(rows: Tensor, query: Tensor) -> Tensor:
    """[K, G L, D] as [H, L, D]."""
    return rows.view(query.shape[0], -1, query.shape[2])


def _probabilities(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """[K, G rows, columns] in the type of `q`; the last columns are the rows' own."""
    scores = (q @ k.mT).to(wide(q.dtype)).mul_(scale)
    num_columns = k.shape[1]
    num_rows = (num_columns - 1) % _TILE + 1
    future = torch.ones(num_rows, num_rows, dtype=torch.bool, device=q.device).triu_(1)
    by_head = scores.view(k.shape[0], -1, num_rows, num_columns)
    by_head[..., num_columns - num_rows :].masked_fill_(future, -torch.inf)
    return scores.softmax(dim=-1).to(q.dtype)
