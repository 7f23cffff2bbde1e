"""Between all tokens of a sequence and those that were sampled, where its loss mask is True."""

from collections.abc import Sequence
from itertools import groupby
from typing import Protocol


class Masked(Protocol):
    """A sequence with its mask, aligned."""

    @property
    def token_ids(self) -> list[int]: ...
    @property
    def loss_mask(self) -> list[bool]: ...


def sampled_runs(tokens: Masked) -> list[list[int]]:
    """Token ids of each completion: what stands between two of them is never sampled."""
    pairs = zip(tokens.token_ids, tokens.loss_mask, strict=True)
    return [[token for token, _ in run] for sampled, run in groupby(pairs, key=lambda pair: pair[1]) if sampled]


def at_sampled_tokens(values: Sequence[float], loss_mask: Sequence[bool]) -> list[float]:
    """The values of the sampled tokens, in order, aligned with all tokens; 0.0 at the others.

    Raises:
        ValueError: there are more or fewer values than sampled tokens.
    """
    if len(values) != sum(loss_mask):
        raise ValueError(f"there are {len(values)} values for {sum(loss_mask)} sampled tokens; expected one for each")
    left = iter(values)
    return [next(left) if is_sampled else 0.0 for is_sampled in loss_mask]
