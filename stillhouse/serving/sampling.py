"""Picking the next token of every row at once.

Dimensions: B rows, V vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch


class Picks(NamedTuple):
    """The next token of each row and its log-probability."""

    tokens: list[int]
    logprobs: list[float]
    """Under softmax(logits / temperature); under softmax(logits) where the temperature is 0. Not renormalised by
    `top_p`."""


def pick_tokens(
    logits_BV: torch.Tensor, temperatures: Sequence[float], top_ps: Sequence[float], uniforms: Sequence[float]
) -> Picks:
    """Samples each row by inverting its cumulative distribution at one uniform number of [0, 1).

    A row with temperature 0 takes its most likely token. One transfer to the host. The cumulative sums are float64: in
    float32 their rounding over a large vocabulary exceeds the probability of rare tokens.
    """
    logits = logits_BV.float()
    greedy = [temperature == 0.0 for temperature in temperatures]
    if any(temperature not in (0.0, 1.0) for temperature in temperatures):
        scale = [1.0 if is_greedy else value for value, is_greedy in zip(temperatures, greedy, strict=True)]
        logits = logits / logits.new_tensor(scale).unsqueeze(1)
    logprobs = logits.log_softmax(-1)
    if all(greedy):
        tokens = logprobs.argmax(-1, keepdim=True)
    else:
        tokens = _invert(logprobs, top_ps, uniforms)
        if any(greedy):
            tokens = torch.where(tokens.new_tensor(greedy).bool()[:, None], logprobs.argmax(-1, keepdim=True), tokens)
    # Token ids are exact in float64, so both lists cross in one transfer.
    both = torch.cat([tokens.double(), logprobs.gather(-1, tokens).double()], dim=1).tolist()
    return Picks([int(token) for token, _ in both], [logprob for _, logprob in both])


def _invert(logprobs_BV: torch.Tensor, top_ps: Sequence[float], uniforms: Sequence[float]) -> torch.Tensor:
    """Sampled token ids [B, 1]."""
    probs = logprobs_BV.exp()
    if any(top_p < 1.0 for top_p in top_ps):
        probs = _nucleus(probs, probs.new_tensor(list(top_ps)))
    cumulative = probs.cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    level = cumulative.new_tensor(list(uniforms)).unsqueeze(1) * total
    # Rounding may lift the product to the total itself, behind the last token.
    level = level.minimum(total.nextafter(torch.zeros_like(total)))
    return torch.searchsorted(cumulative, level, right=True)


def _nucleus(probs_BV: torch.Tensor, top_p_B: torch.Tensor) -> torch.Tensor:
    """`probs_BV` with zeros outside each row's smallest set of tokens whose mass reaches `top_p` (arXiv:1904.09751)."""
    ordered, order = probs_BV.sort(-1, descending=True)
    mass_before = ordered.cumsum(-1) - ordered
    is_kept = (mass_before < top_p_B[:, None]) | (top_p_B[:, None] >= 1.0)
    return torch.zeros_like(probs_BV).scatter(-1, order, ordered * is_kept)
