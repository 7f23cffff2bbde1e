"""What each shard of prompts owes to a dataset of so many rows."""

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.rollouts import Rollouts


@dataclass(slots=True)
class ShardQuota:
    """What one shard owes."""

    num_prompts: int
    rows: int
    max_candidates: int | None


class ShardQuotas:
    """What the shards owe together.

    Args:
        target: accepted rows.
        max_candidates: most rollouts in all; None sets no limit.
    """

    def __init__(self, target: int, max_candidates: int | None) -> None:
        self.shards: list[ShardQuota] = []
        self._target = target
        self._max_candidates = max_candidates

    def share(self, sizes: Sequence[int]) -> None:
        """Shares the target out by the number of prompts of each shard, the first time this is called."""
        if not self.shards:
            rows = _parts(self._target, sizes)
            most = [None] * len(sizes) if self._max_candidates is None else _parts(self._max_candidates, sizes)
            self.shards = [ShardQuota(*debt) for debt in zip(sizes, rows, most, strict=True)]

    def raise_by(self, missing: int, rollouts: Rollouts) -> bool:
        """Adds what is missing to the shards that can give more; False if none can.

        A shard that gave less than it owed without being stopped by its part of the candidates has no more to give.
        """
        given = [(shard.facts["accepted"], shard.facts["trajectories"]) for shard in rollouts.shards]
        able = [
            debt
            for debt, (accepted, candidates) in zip(self.shards, given, strict=True)
            if accepted >= debt.rows or candidates == debt.max_candidates
        ]
        spare = None
        if self._max_candidates is not None:
            spare = self._max_candidates - sum(candidates for _, candidates in given)
            for debt, (_, candidates) in zip(self.shards, given, strict=True):
                debt.max_candidates = candidates
        if not able or spare == 0:
            return False
        sizes = [debt.num_prompts for debt in able]
        for debt, rows in zip(able, _parts(missing, sizes), strict=True):
            debt.rows += rows
        if spare is not None:
            for debt, candidates in zip(able, _parts(spare, sizes), strict=True):
                debt.max_candidates = (debt.max_candidates or 0) + candidates
        return True


def _parts(total: int, sizes: Sequence[int]) -> list[int]:
    """`total` in whole parts nearly proportional to `sizes`, at least 1 for each while that does not pass `total`."""
    parts = []
    left, weight = total, sum(sizes)
    for size in sizes:
        part = min(left, max(1, round(left * size / weight))) if weight else 0
        parts.append(part)
        left -= part
        weight -= size
    return parts
