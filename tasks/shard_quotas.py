"""Quotas: how many accepted rows each shard of prompts contributes to a dataset with a target."""

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.rollouts import Rollouts


@dataclass(slots=True)
class ShardQuota:
    """Rows that one shard should contribute, and most rollouts for them."""

    num_prompts: int
    rows: int
    max_candidates: int | None


class ShardQuotas:
    """The quotas of all shards.

    Args:
        target: accepted rows.
        max_candidates: most rollouts in all; None sets no limit.
    """

    def __init__(self, target: int, max_candidates: int | None) -> None:
        self.shards: list[ShardQuota] = []
        self._target = target
        self._max_candidates = max_candidates

    def share(self, sizes: Sequence[int]) -> None:
        """Divides the target among the shards by their number of prompts; later calls change nothing."""
        if not self.shards:
            rows = _parts(self._target, sizes)
            most = [None] * len(sizes) if self._max_candidates is None else _parts(self._max_candidates, sizes)
            self.shards = [ShardQuota(*quota) for quota in zip(sizes, rows, most, strict=True)]

    def raise_by(self, missing: int, rollouts: Rollouts) -> bool:
        """Adds the missing rows to the quotas of shards that can sample more; False if none can.

        A shard that missed its quota without reaching its `max_candidates` has no candidates left.
        """
        counts = [(shard.facts["accepted"], shard.facts["trajectories"]) for shard in rollouts.shards]
        able = [
            quota
            for quota, (accepted, candidates) in zip(self.shards, counts, strict=True)
            if accepted >= quota.rows or candidates == quota.max_candidates
        ]
        spare = None
        if self._max_candidates is not None:
            spare = self._max_candidates - sum(candidates for _, candidates in counts)
            for quota, (_, candidates) in zip(self.shards, counts, strict=True):
                quota.max_candidates = candidates
        if not able or spare == 0:
            return False
        sizes = [quota.num_prompts for quota in able]
        for quota, rows in zip(able, _parts(missing, sizes), strict=True):
            quota.rows += rows
        if spare is not None:
            for quota, candidates in zip(able, _parts(spare, sizes), strict=True):
                quota.max_candidates = (quota.max_candidates or 0) + candidates
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
