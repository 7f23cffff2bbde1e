"""Samples the next token of every row on the device of the logits.

Dimensions: B rows, V vocabulary, C chunks of it, W tokens of a chunk.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

_CHUNK: Final = 4096
"""Widest vocabulary whose cumulative distribution is computed as a whole."""


class Draw(NamedTuple):
    """Random number and sampling parameters of the next token of one row."""

    uniform: float
    """In [0, 1): where the cumulative distribution is inverted."""
    temperature: float = 1.0
    """0 takes the most likely token."""
    top_p: float = 1.0
    """1 cuts nothing off."""
    processed_logprobs: bool = False
    """True if the log-probability is under the distribution renormalised after `top_p`."""


class PickSteps(NamedTuple):
    """Sampling steps that a batch needs."""

    are_tempered: bool
    are_cut: bool
    some_greedy: bool
    all_greedy: bool
    num_best: int = 0
    """Most probable tokens that are returned beside the sampled one."""

    @classmethod
    def of(cls, draws: Sequence[Draw]) -> "PickSteps":
        return cls(
            are_tempered=any(draw.temperature not in (0.0, 1.0) for draw in draws),
            are_cut=any(draw.top_p < 1.0 for draw in draws),
            some_greedy=any(draw.temperature == 0.0 for draw in draws),
            all_greedy=all(draw.temperature == 0.0 for draw in draws),
        )


def pick_tokens(logits_BV: Tensor, draws_4B: Tensor, steps: PickSteps) -> Tensor:
    """Sample each row by inverting its cumulative distribution at one uniform number.

    Cumulative sums are float64: in float32 their rounding over a large vocabulary exceeds the probability of rare
    tokens.

    `draws_4B` are the fields of each row's `Draw`, float64.

    Returns:
        Token id and log-probability of each row, and the ids of its `num_best` most probable tokens, float64
        [2 + num_best, B]. The log-probability is under softmax(logits / temperature), or softmax(logits) where the
        temperature is 0, unless the row wants it processed.
    """
    uniforms_B, temperatures_B, top_ps_B, are_processed_B = draws_4B
    logits = logits_BV.float()
    is_greedy_B1 = (temperatures_B == 0.0)[:, None]
    if steps.are_tempered:
        logits = logits / temperatures_B.float()[:, None].masked_fill(is_greedy_B1, 1.0)
    logprobs = logits.log_softmax(-1)
    if steps.all_greedy:
        tokens_B1 = logprobs.argmax(-1, keepdim=True)
    else:
        probs = logprobs.exp()
        if steps.are_cut:
            probs = _nucleus(probs, top_ps_B.float())
            kept_B1 = probs.sum(-1, keepdim=True, dtype=torch.float64).log().to(logprobs.dtype)
            logprobs = logprobs - torch.where(are_processed_B[:, None] != 0.0, kept_B1, torch.zeros_like(kept_B1))
        tokens_B1 = _invert(probs, uniforms_B[:, None])
        if steps.some_greedy:
            tokens_B1 = torch.where(is_greedy_B1, logprobs.argmax(-1, keepdim=True), tokens_B1)
    best = [logprobs.topk(steps.num_best).indices.double()] if steps.num_best else []
    # Token ids are exact in float64, so all cross to the host in one transfer.
    return torch.cat([tokens_B1.double(), logprobs.gather(-1, tokens_B1).double(), *best], dim=1).T


def _invert(probs_BV: Tensor, uniforms_B1: Tensor) -> Tensor:
    """Return the sampled token ids [B, 1]; rows need not sum to one.

    A large vocabulary is searched in two steps, by chunk and inside the chunk, which reads the probabilities once
    where their cumulative sums would be written and read in float64.
    """
    if probs_BV.shape[1] <= _CHUNK:
        cumulative_BV = probs_BV.cumsum(-1, dtype=torch.float64)
        return _first_above(cumulative_BV, uniforms_B1 * cumulative_BV[:, -1:])
    size = probs_BV.shape[1]
    full = size - size % _CHUNK
    masses = [probs_BV[:, :full].unflatten(1, (-1, _CHUNK)).sum(-1, dtype=torch.float64)]
    if full < size:
        masses.append(probs_BV[:, full:].sum(-1, keepdim=True, dtype=torch.float64))
    edges_BC = torch.cat(masses, dim=1).cumsum(-1)
    level_B1 = uniforms_B1 * edges_BC[:, -1:]
    chunk_B1 = _first_above(edges_BC, level_B1)
    before_B1 = torch.where(chunk_B1 > 0, edges_BC.gather(1, (chunk_B1 - 1).clamp_min(0)), 0.0)
    tokens_BW = chunk_B1 * _CHUNK + torch.arange(_CHUNK, device=probs_BV.device)
    inside_BW = probs_BV.gather(1, tokens_BW.clamp_max(size - 1)).where(tokens_BW < size, 0.0)
    place_B1 = _first_above(inside_BW.cumsum(-1, dtype=torch.float64), level_B1 - before_B1)
    return (chunk_B1 * _CHUNK + place_B1).clamp_max(size - 1)


def _first_above(cumulative: Tensor, level_B1: Tensor) -> Tensor:
    """Return the place of the first sum above the level, [B, 1]."""
    total_B1 = cumulative[:, -1:]
    # Rounding may lift the level to the total, beyond the last token.
    level_B1 = level_B1.minimum(total_B1.nextafter(torch.zeros_like(total_B1)))
    # With NaN no sum is above, and an index out of range would kill a CUDA process.
    return torch.searchsorted(cumulative, level_B1, right=True).clamp_max(cumulative.shape[1] - 1)


def _nucleus(probs_BV: Tensor, top_p_B: Tensor) -> Tensor:
    """Return `probs_BV`, zero outside each row's smallest set of tokens with a mass of `top_p` (arXiv:1904.09751)."""
    ordered, order = probs_BV.sort(-1, descending=True)
    mass_before = ordered.cumsum(-1) - ordered
    is_kept = (mass_before < top_p_B[:, None]) | (top_p_B[:, None] >= 1.0)
    return torch.zeros_like(probs_BV).scatter(-1, order, ordered * is_kept)


def read_picks(picks_2B: Tensor) -> tuple[list[int], list[float]]:
    """Return tokens and log-probabilities of the rows; raise FloatingPointError for NaN."""
    tokens, logprobs = picks_2B.tolist()
    if math.isnan(sum(logprobs)):
        raise FloatingPointError(
            f"the logits of {sum(map(math.isnan, logprobs))} of {len(logprobs)} rows are NaN, so that no token can "
            "be sampled; the weights are damaged, or too large for the type that is computed in"
        )
    return [int(token) for token in tokens], logprobs
