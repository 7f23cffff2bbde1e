"""What a stage says about how far it is; who shows it is decided outside.

A stage calls `Progress.update`, and rollouts `RolloutWatcher.update_rollouts`, which has more to say; a terminal draws
bars, a log writes lines, a test counts.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

Fact = str | int | float


class Progress(Protocol):
    """Receives the state of one stage. Calls are cheap; a listener thins them out."""

    def update(self, stage: str, done: int, total: int | None, **facts: Fact) -> None:
        """Reports that `done` of `total` items of `stage` are finished.

        Args:
            stage: name shown to a person, for instance `rollouts`.
            done: items finished.
            total: items in all; None when not known.
            facts: what a person wants to see beside the bar, for instance `tokens_per_s=512.0`.
        """


class UsdRange(NamedTuple):
    """What something is going to cost in USD: the expectation and an interval around it."""

    low: float
    mean: float
    high: float


@dataclass(frozen=True, slots=True)
class RolloutProgress:
    """How a collection of rollouts stands. Rates are those of the last half minute or so, not since the start."""

    done: int
    """Rollouts finished, failed and replayed ones included."""
    total: int | None
    """Rollouts in all; None when not known."""
    failed: int = 0
    num_replayed: int = 0
    """Rollouts of `done` that the journal held whole, so that they cost nothing."""
    rows_per_s: float = 0.0
    tokens_per_s: float = 0.0
    """Tokens sampled a second."""
    in_flight: int = 0
    """Requests in flight to the endpoint, those of other collections in this process included."""
    limit: int = 0
    """Requests that may be in flight now."""
    limit_reason: str = ""
    """What the limit learnt follows from, in words for a person."""
    requests_per_minute: float | None = None
    """Limit of requests a minute, learnt or set; None while nothing binds."""
    tokens_per_minute: float | None = None
    """Limit of tokens a minute, learnt or set; None while nothing binds."""
    num_rate_limited: int = 0
    """Requests refused with 429."""
    retries: Mapping[str, int] = field(default_factory=dict)
    """Failed tries by class of failure, rate limiting apart."""
    usd: float | None = None
    """Money that this collection spent; None when the price is unknown."""
    usd_projected: UsdRange | None = None
    """What all `total` rollouts of this collection are going to cost; None while nobody can say."""

    @property
    def eta_s(self) -> float | None:
        """Seconds until the last rollout is done at the present rate; None where nobody can say."""
        if self.total is None or self.rows_per_s <= 0.0:
            return None
        return max(self.total - self.done, 0) / self.rows_per_s


class RolloutWatcher(Protocol):
    """Receives the state of a collection of rollouts. Calls are cheap; a watcher thins them out."""

    def update_rollouts(self, stage: str, state: RolloutProgress) -> None:
        """Reports how the collection shown as `stage` stands."""


class NoProgress:
    """Shows nothing."""

    def update(self, stage: str, done: int, total: int | None, **facts: Fact) -> None:
        """Does nothing."""

    def update_rollouts(self, stage: str, state: RolloutProgress) -> None:
        """Does nothing."""


class RecentRate:
    """How fast a count has grown of late.

    Args:
        window_s: seconds looked back; shorter as long as fewer have passed.
    """

    def __init__(self, window_s: float = 30.0) -> None:
        self._window_s = window_s
        self._points: deque[tuple[float, float]] = deque()

    def per_second(self, count: float, now: float) -> float:
        """The rate up to `now`, when the count stands at `count`; 0 at the first call."""
        self._points.append((now, count))
        # The newest point at or before the window's start stays: the window is never shorter than asked for.
        while len(self._points) > 2 and self._points[1][0] <= now - self._window_s:
            self._points.popleft()
        started, first = self._points[0]
        return (count - first) / (now - started) if now > started else 0.0


def add_up_rollouts(parts: Sequence[RolloutProgress], *, total: int | None, newest: RolloutProgress) -> RolloutProgress:
    """The state of several collections that ask the same endpoint at once.

    Counts, rates and money add up. The limits and what is in flight are the endpoint's and not a collection's: they are
    those of `newest`. Money is unknown as soon as one part's is. The projection of the parts that have one is scaled to
    all rollouts.

    Args:
        parts: at least one.
        total: rollouts in all, those of parts that have not started included; None when not known.
        newest: the part heard of last.
    """
    retries: Counter[str] = Counter()
    for part in parts:
        retries.update(part.retries)
    known = [part.usd for part in parts if part.usd is not None]
    return RolloutProgress(
        done=sum(part.done for part in parts),
        total=total,
        failed=sum(part.failed for part in parts),
        num_replayed=sum(part.num_replayed for part in parts),
        rows_per_s=sum(part.rows_per_s for part in parts),
        tokens_per_s=sum(part.tokens_per_s for part in parts),
        in_flight=newest.in_flight,
        limit=newest.limit,
        limit_reason=newest.limit_reason,
        requests_per_minute=newest.requests_per_minute,
        tokens_per_minute=newest.tokens_per_minute,
        num_rate_limited=sum(part.num_rate_limited for part in parts),
        retries=dict(sorted(retries.items())),
        usd=sum(known) if len(known) == len(parts) else None,
        usd_projected=_project(parts, total),
    )


def _project(parts: Sequence[RolloutProgress], total: int | None) -> UsdRange | None:
    told = [(part.usd_projected, part.total) for part in parts if part.usd_projected is not None and part.total]
    if not told or total is None:
        return None
    # One price and one kind of prompt: the parts err in the same direction, so the ends of their intervals add up.
    scale = total / sum(num_rollouts for _, num_rollouts in told)
    low, mean, high = (sum(usd[end] for usd, _ in told) * scale for end in range(3))
    return UsdRange(low, mean, high)
