"""Progress reports of a running collection."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from stillhouse.inference.budget.projection import MIN_ROLLOUTS, Series
from stillhouse.inference.rate_limit import Controller, ControlSnapshot
from stillhouse.inference.stats import RolloutStats
from stillhouse.progress.state import RecentRate, RolloutProgress, UsdRange

_BUSY: Final = 0.9  # of a core; Python runs one thread at a time


@dataclass(slots=True)
class Reporter:
    """Reports figures of a collection of `total` rollouts (None: unknown) together with the limits of its endpoint."""

    show: Callable[[RolloutProgress], object]
    stats: RolloutStats
    controller: Controller
    total: int | None
    is_local: bool
    clock: Callable[[], float]
    cpu_clock: Callable[[], float] = time.process_time
    usd: Series = field(default_factory=Series)
    """Cost of each finished rollout, NaN where its price is unknown, for the projection."""
    outage_s: float | None = None
    """For how long no connection could be made to the endpoint; None where one can be."""
    _busy: RecentRate = field(default_factory=RecentRate)
    _rows: RecentRate = field(default_factory=RecentRate)
    _tokens: RecentRate = field(default_factory=RecentRate)

    def report(self) -> None:
        now, stats, limits = self.clock(), self.stats, self.controller.snapshot()
        self.show(
            RolloutProgress(
                done=stats.num_rollouts,
                total=self.total,
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
                is_local=self.is_local,
            )
        )

    def _reason(self, limits: ControlSnapshot, now: float) -> str:
        share = self._busy.per_second(self.cpu_clock(), now)
        if self.outage_s is not None:
            return f"no connection for {self.outage_s:.0f} s, waiting for the endpoint"
        if limits.in_flight and share >= _BUSY:
            return f"{limits.reason}; this process is the bottleneck: it keeps {share:.0%} of a core busy"
        return limits.reason

    def _projected(self) -> UsdRange | None:
        if self.total is None or self.usd.count < MIN_ROLLOUTS or math.isnan(self.usd.mean):
            return None
        return self.usd.project(self.total)
