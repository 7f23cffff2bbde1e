"""Causal attention within the segments of a packed row by plain matrix products: the faster way on a CPU.

torch's flash attention works in blocks that short sequences do not fill: products of 128 queries of all heads with what
they may see take 0.4 to 0.9 of its time for segments of 100 to 500 tokens, in float32 more than that from 1,000 on.
Probabilities are recomputed in the backward pass. Small segments of one length are multiplied at once, with the same
bits, in 0.2 to 0.8 of the time; from some 8,192 numbers of queries on, the copies that this takes cost what it saves.

Dimensions: T time, S segments at once, L tokens of each, H query heads, K key and value heads, G query heads for each,
D width.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

MAX_FLOAT32_LENGTH: Final = 1024
"""Longest segment for which products are the faster way in float32."""
_TILE: Final = 128
"""Queries that are multiplied at once; later keys are not computed for them."""
_MAX_TOGETHER: Final = 8192
"""Most numbers of a segment's queries, of all heads, for it to be multiplied together with others."""

Place = slice | Tensor
"""Times of one segment, or of several of one length as [S, L]."""


def segment_products(query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int], scale: float) -> Tensor:
    """Return softmax(scale q k^T) v of each token over those of its segment up to itself, as [T, H, D].

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
        for rows, columns in _tiles(lengths, query):
            q, k, v = _grouped(query[:, rows], key), _taken(key, columns), _taken(value, columns)
            output[:, rows] = _ungrouped(_probabilities(q, k, scale) @ v, query, rows)
        return output.transpose(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value = ctx.saved_tensors
        d_query, d_key, d_value = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
        gradient = gradient.transpose(0, 1)
        for rows, columns in _tiles(ctx.lengths, query):
            q, k, v = _grouped(query[:, rows], key), _taken(key, columns), _taken(value, columns)
            d_out = _grouped(gradient[:, rows], key)
            p = _probabilities(q, k, ctx.scale)
            d_value[:, columns] += _ungrouped(p.mT @ d_out, value, columns)
            d_p = (d_out @ v.mT).to(torch.promote_types(p.dtype, torch.float32))
            d_p.sub_((d_p * p).sum(dim=-1, keepdim=True)).mul_(p).mul_(ctx.scale)
            d_scores = d_p.to(p.dtype)
            d_query[:, rows] = _ungrouped(d_scores @ k, query, rows)
            d_key[:, columns] += _ungrouped(d_scores.mT @ q, key, columns)
        return d_query, d_key, d_value, None, None


def _tiles(lengths: Sequence[int], query: Tensor) -> Iterator[tuple[Place, Place]]:
    """Yield places of tokens of segments, with those of the tokens that they attend to."""
    size, counts = query.shape[0] * query.shape[2], Counter(lengths)
    together: dict[int, list[int]] = {}
    for length, first in zip(lengths, accumulate(lengths, initial=0), strict=False):
        if counts[length] > 1 and length <= _TILE and length * size <= _MAX_TOGETHER:
            together.setdefault(length, []).append(first)
            continue
        for begin in range(0, length, _TILE):
            end = first + min(begin + _TILE, length)
            yield slice(first + begin, end), slice(first, end)
    for length, firsts in together.items():
        place = torch.tensor(firsts)[:, None] + torch.arange(length)
        yield place, place


def _taken(x: Tensor, place: Place) -> Tensor:
    """Return the rows of [K, T, D] at a place, as [S K, L, D]."""
    return x[:, place] if isinstance(place, slice) else x[:, place].transpose(0, 1).flatten(0, 1)


def _grouped(rows: Tensor, key: Tensor) -> Tensor:
    """Return [H, L, D] as [K, G L, D], or [H, S, L, D] as [S K, G L, D]."""
    num_segments = 1 if rows.ndim == 3 else rows.shape[1]
    if rows.ndim == 4:
        rows = rows.transpose(0, 1)
    return rows.reshape(num_segments * key.shape[0], -1, key.shape[2])


def _ungrouped(rows: Tensor, like: Tensor, place: Place) -> Tensor:
    """Return [K, G L, D] as [H, L, D], or [S K, G L, D] as [H, S, L, D], with the heads of `like`."""
    if isinstance(place, slice):
        return rows.view(like.shape[0], -1, like.shape[2])
    return rows.view(len(place), like.shape[0], -1, like.shape[2]).transpose(0, 1)


def _probabilities(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """Return [K, G rows, columns] in the type of `q`; the last columns are the rows' own."""
    scores = (q @ k.mT).to(torch.promote_types(q.dtype, torch.float32)).mul_(scale)
    num_columns = k.shape[1]
    num_rows = (num_columns - 1) % _TILE + 1
    future = torch.ones(num_rows, num_rows, dtype=torch.bool, device=q.device).triu_(1)
    by_head = scores.view(k.shape[0], -1, num_rows, num_columns)
    by_head[..., num_columns - num_rows :].masked_fill_(future, -torch.inf)
    return scores.softmax(dim=-1).to(q.dtype)
