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
    """Under softmax(logits / temperature), or softmax(logits) where the temperature is 0, of rows that are not
    processed; under what `top_p` leaves of it, which sums to one, of rows that are."""


def pick_tokens(
    logits_BV: torch.Tensor,
    temperatures: Sequence[float],
    top_ps: Sequence[float],
    uniforms: Sequence[float],
    are_processed: Sequence[bool] = (),
) -> Picks:
    """Samples each row by inverting its cumulative distribution at one uniform number of [0, 1).

    A row with temperature 0 takes its most likely token. One transfer to the host. The cumulative sums are float64: in
    float32 their rounding over a large vocabulary exceeds the probability of rare tokens.

    Args:
        logits_BV: the next token's, of each row.
        temperatures: by row.
        top_ps: by row; 1 cuts nothing off.
        uniforms: by row.
        are_processed: by row, whether its log-probability is that of the cut distribution; empty says of none.
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
        probs = logprobs.exp()
        if any(top_p < 1.0 for top_p in top_ps):
            probs = _nucleus(probs, probs.new_tensor(list(top_ps)))
            logprobs = _processed(logprobs, probs, are_processed)
        tokens = _invert(probs, uniforms)
        if any(greedy):
            tokens = torch.where(tokens.new_tensor(greedy).bool()[:, None], logprobs.argmax(-1, keepdim=True), tokens)
    # Token ids are exact in float64, so both lists cross in one transfer.
    both = torch.cat([tokens.double(), logprobs.gather(-1, tokens).double()], dim=1).tolist()
    return Picks([int(token) for token, _ in both], [logprob for _, logprob in both])


def _invert(probs_BV: torch.Tensor, uniforms: Sequence[float]) -> torch.Tensor:
    """Sampled token ids [B, 1]; rows need not sum to one."""
    cumulative = probs_BV.cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    level = cumulative.new_tensor(list(uniforms)).unsqueeze(1) * total
    # Rounding may lift the product to the total itself, behind the last token.
    level = level.minimum(total.nextafter(torch.zeros_like(total)))
    return torch.searchsorted(cumulative, level, right=True)


def _processed(logprobs_BV: torch.Tensor, kept_BV: torch.Tensor, are_processed: Sequence[bool]) -> torch.Tensor:
    """`logprobs_BV` less the log of the mass kept, in rows that are processed; what was cut off is never asked for."""
    mass_B1 = kept_BV.sum(-1, keepdim=True, dtype=torch.float64).log().to(logprobs_BV.dtype)
    wanted = torch.tensor(list(are_processed) or [False], device=logprobs_BV.device)[:, None]
    return logprobs_BV - torch.where(wanted, mass_B1, torch.zeros_like(mass_B1))


def _nucleus(probs_BV: torch.Tensor, top_p_B: torch.Tensor) -> torch.Tensor:
    """`probs_BV` with zeros outside each row's smallest set of tokens whose mass reaches `top_p` (arXiv:1904.09751)."""
    ordered, order = probs_BV.sort(-1, descending=True)
    mass_before = ordered.cumsum(-1) - ordered
    is_kept = (mass_before < top_p_B[:, None]) | (top_p_B[:, None] >= 1.0)
    return torch.zeros_like(probs_BV).scatter(-1, order, ordered * is_kept)
