"""Progress of stages as data; listeners decide how to show it.

A stage calls `Progress.update`; rollouts have the more detailed `RolloutProgress`.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Protocol

Fact = str | int | float


class Progress(Protocol):
    """Receives the state of one stage. Calls are cheap; a listener thins them out."""

    def update(self, stage: str, done: int, total: int | None, **facts: Fact) -> None:
        """Report that `done` of `total` items (None: unknown) of `stage` are finished.

        `facts` are details shown next to the bar, for instance `tokens_per_s=512.0`.
        """


class UsdRange(NamedTuple):
    """Projected cost in USD: the expectation and an interval around it."""

    low: float
    mean: float
    high: float


@dataclass(frozen=True, slots=True)
class RolloutProgress:
    """State of a collection of rollouts. Rates are those of about the last half minute, not since the start."""

    done: int
    """Finished rollouts, including failed and replayed ones."""
    total: int | None
    """Rollouts in all; None when not known."""
    failed: int = 0
    num_replayed: int = 0
    """Rollouts of `done` that were complete in the journal and cost nothing."""
    rows_per_s: float = 0.0
    num_tokens: int = 0
    """Completion tokens of `done` and of those under way."""
    tokens_per_s: float = 0.0
    in_flight: int = 0
    """Requests in flight to the endpoint, including other collections of this process."""
    limit: int = 0
    """Of requests in flight, learnt for the reason below."""
    limit_reason: str = ""
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    """Limits, learnt or set; None while nothing binds."""
    num_rate_limited: int = 0
    """Requests refused with 429."""
    retries: Mapping[str, int] = field(default_factory=dict)
    """Failed attempts by class of failure, without rate limiting."""
    num_copies: int = 0
    """Requests sent a second time, as their answers were overdue by far."""
    usd: float | None = None
    """Money spent; None if the price is unknown."""
    usd_projected: UsdRange | None = None
    """Projected cost of all `total` rollouts; None while unknown."""
    is_local: bool = False
    """Whether the model is served by this machine: it costs no money, and refusals only pace its clients."""

    @property
    def eta_s(self) -> float | None:
        """Return estimated seconds until the last rollout is done; None if unknown."""
        if self.total is None or self.rows_per_s <= 0.0:
            return None
        return max(self.total - self.done, 0) / self.rows_per_s


class NoProgress:
    """Shows nothing; see `Progress`."""

    def update(self, stage: str, done: int, total: int | None, **facts: Fact) -> None:
        pass

    def update_rollouts(self, stage: str, state: RolloutProgress) -> None:
        """Report the state of the collections of rollouts shown as `stage`."""


class RecentRate:
    """Rate of growth of a count over a recent window, at most the time since the start."""

    def __init__(self, window_s: float = 30.0) -> None:
        self._window_s = window_s
        self._points: deque[tuple[float, float]] = deque()

    def per_second(self, count: float, now: float) -> float:
        """Return the rate up to `now` given the current `count`; 0 at the first call."""
        self._points.append((now, count))
        # Keep the newest point at or before the start of the window, so that it is never too short.
        while len(self._points) > 2 and self._points[1][0] <= now - self._window_s:
            self._points.popleft()
        started, first = self._points[0]
        return (count - first) / (now - started) if now > started else 0.0


_SUMMED: Final = ("done", "failed", "num_replayed", "num_tokens", "num_rate_limited", "num_copies")


def add_up_rollouts(parts: Sequence[RolloutProgress], *, total: int | None, newest: RolloutProgress) -> RolloutProgress:
    """Return the sum of concurrent collections at the same endpoint.

    Counts and money add up; money is unknown if it is unknown for one part. Limits and requests in flight belong to the
    endpoint and are those of `newest`, the part updated last; speeds are its own. Projections are scaled to all
    rollouts: `total`, including parts that have not started.
    """
    retries: Counter[str] = Counter()
    for part in parts:
        retries.update(part.retries)
    known = [part.usd for part in parts if part.usd is not None]
    projected = None
    projections = [(part.usd_projected, part.total) for part in parts if part.usd_projected is not None and part.total]
    if projections and total is not None:
        # Equal prices and prompts: errors of the parts are correlated, so the bounds of their intervals add up.
        scale = total / sum(num_rollouts for _, num_rollouts in projections)
        projected = UsdRange(*(sum(usd[end] for usd, _ in projections) * scale for end in range(3)))
    return replace(
        newest,
        total=total,
        **{name: sum(getattr(part, name) for part in parts) for name in _SUMMED},
        retries=dict(sorted(retries.items())),
        usd=sum(known) if len(known) == len(parts) else None,
        usd_projected=projected,
    )
