"""Progress reports of a running collection."""

import math
import time
from collections.abc import Callable
from typing import Final

from stillhouse.inference.budget.projection import MIN_ROLLOUTS, Series
from stillhouse.inference.rate_limit import Controller, ControlSnapshot
from stillhouse.inference.stats import RolloutStats
from stillhouse.progress.state import RecentRate, RolloutProgress, RolloutWatcher, UsdRange

_BUSY: Final = 0.9  # of a core; Python runs one thread at a time


class Reporter:
    """Reports figures of a collection of `total` rollouts (None: unknown) together with the limits of its endpoint."""

    def __init__(
        self,
        watcher: RolloutWatcher,
        stats: RolloutStats,
        controller: Controller,
        *,
        total: int | None,
        is_local: bool,
        clock: Callable[[], float],
        cpu_clock: Callable[[], float] = time.process_time,
    ) -> None:
        self._watcher = watcher
        self._stats = stats
        self._controller = controller
        self._total = total
        self._is_local = is_local
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._busy = RecentRate()
        self._rows = RecentRate()
        self._tokens = RecentRate()
        self._usd = Series()
        self._outage_s: float | None = None

    def note_outage(self, seconds: float | None) -> None:
        """Note since when no connection can be made to the endpoint; None where one can be."""
        self._outage_s = seconds

    def count_rollout(self, usd: float | None) -> None:
        """Add the cost of a finished rollout to the projection; None where its price is unknown."""
        self._usd.add(math.nan if usd is None else usd)

    def report(self) -> None:
        now, stats, limits = self._clock(), self._stats, self._controller.snapshot()
        self._watcher.update_rollouts(
            "rollouts",
            RolloutProgress(
                done=stats.num_rollouts,
                total=self._total,
                failed=stats.num_failed,
                num_replayed=stats.num_replayed_rollouts,
                rows_per_s=self._rows.per_second(stats.num_rollouts - stats.num_replayed_rollouts, now),
                num_tokens=stats.completion_tokens,
                tokens_per_s=self._tokens.per_second(stats.completion_tokens, now),
                in_flight=limits.in_flight,
                limit=limits.limit,
                limit_reason=self._reason(limits, now),
                requests_per_minute=limits.requests_per_minute,
                tokens_per_minute=limits.tokens_per_minute,
                num_rate_limited=stats.num_rate_limited,
                num_copies=stats.num_copies,
                retries={kind.value: count for kind, count in sorted(stats.retries.items())},
                usd=stats.cost_usd,
                usd_projected=self._projected(),
                is_local=self._is_local,
            ),
        )

    def _reason(self, limits: ControlSnapshot, now: float) -> str:
        share = self._busy.per_second(self._cpu_clock(), now)
        if self._outage_s is not None:
            return f"no connection for {self._outage_s:.0f} s, waiting for the endpoint"
        if limits.in_flight and share >= _BUSY:
            return f"{limits.reason}; this process is the bottleneck: it keeps {share:.0%} of a core busy"
        return limits.reason

    def _projected(self) -> UsdRange | None:
        if self._total is None or self._usd.count < MIN_ROLLOUTS or math.isnan(self._usd.mean):
            return None
        return self._usd.project(self._total)
