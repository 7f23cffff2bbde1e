"""The microbatches of a step, dealt out to processes that work in step with each other.

The processes exchange weights and gradients in every microbatch, so each round lasts as long as its longest
microbatch. Rounds are therefore made of microbatches of like length, and none is left idle that could be given a part
of another's.
"""

import math
from collections.abc import Sequence

from stillhouse.types import Sample


def shares(groups: Sequence[Sequence[Sample]], size: int) -> list[list[list[Sample]]]:
    """The microbatches of each of `size` processes: equally many each, of about as many tokens.

    Args:
        groups: the samples of each microbatch.
        size: number of processes.

    Returns:
        For each process its microbatches, longest first. Each of `groups` comes whole or in parts. Where the samples
        are too few to go round, microbatches without samples fill up.
    """
    num_rounds = math.ceil(len(groups) / size)
    longest_first = sorted(_split(groups, num_rounds * size), key=_num_tokens, reverse=True)
    dealt: list[list[list[Sample]]] = [[] for _ in range(size)]
    loads = [0] * size
    for start in range(0, num_rounds * size, size):
        row = longest_first[start : start + size]
        row += [[] for _ in range(size - len(row))]
        least_loaded_first = sorted(range(size), key=loads.__getitem__)
        for rank, group in zip(least_loaded_first, row, strict=True):
            dealt[rank].append(group)
            loads[rank] += _num_tokens(group)
    return dealt


def _split(groups: Sequence[Sequence[Sample]], wanted: int) -> list[list[Sample]]:
    """`wanted` groups, made by halving the longest that has more than one sample; fewer when none has."""
    parts = [list(group) for group in groups]
    while len(parts) < wanted:
        divisible = [place for place, part in enumerate(parts) if len(part) > 1]
        if not divisible:
            break
        place = max(divisible, key=lambda place: _num_tokens(parts[place]))
        parts[place : place + 1] = _halves(parts[place])
    return parts


def _halves(group: Sequence[Sample]) -> list[list[Sample]]:
    halves: list[list[Sample]] = [[], []]
    for sample in sorted(group, key=lambda sample: len(sample.token_ids), reverse=True):
        min(halves, key=_num_tokens).append(sample)
    return halves


def _num_tokens(group: Sequence[Sample]) -> int:
    return sum(len(sample.token_ids) for sample in group)
