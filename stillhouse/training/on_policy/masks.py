"""Selecting and placing values at the sampled tokens of a sequence."""

from collections.abc import Sequence
from itertools import groupby, islice
from typing import Protocol


class Masked(Protocol):
    """A sequence with its mask, aligned."""

    @property
    def token_ids(self) -> list[int]: ...
    @property
    def loss_mask(self) -> list[bool]: ...


def sampled_runs(tokens: Masked) -> list[list[int]]:
    """Return the token ids of each completion, the maximal runs of sampled tokens."""
    return _runs(tokens, is_sampled=True)


def unsampled_runs(tokens: Masked) -> list[list[int]]:
    """Return the token ids of the prompt, and of what the model reads before each further completion."""
    return _runs(tokens, is_sampled=False)


def at_sampled_tokens(values: Sequence[float], loss_mask: Sequence[bool]) -> list[float]:
    """Return the values at the positions of the sampled tokens, 0.0 elsewhere; raise ValueError unless one for each."""
    if len(values) != sum(loss_mask):
        raise ValueError(f"there are {len(values)} values for {sum(loss_mask)} sampled tokens; expected one for each")
    remaining = iter(values)
    return [next(remaining) if is_sampled else 0.0 for is_sampled in loss_mask]


def without_first(loss_mask: Sequence[bool], num_tokens: int) -> list[bool]:
    """Return the mask without its first `num_tokens` sampled tokens."""
    places = (place for place, is_sampled in enumerate(loss_mask) if is_sampled)
    first = set(islice(places, num_tokens))
    return [is_sampled and place not in first for place, is_sampled in enumerate(loss_mask)]


def _runs(tokens: Masked, *, is_sampled: bool) -> list[list[int]]:
    pairs = zip(tokens.token_ids, tokens.loss_mask, strict=True)
    runs = groupby(pairs, key=lambda pair: pair[1])
    return [[token for token, _ in run] for sampled, run in runs if sampled == is_sampled]
