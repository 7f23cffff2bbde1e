"""How many requests may be in flight: a pure state machine, clock passed in.

    event                              what it does
    success while saturated            limit + 1 before the first cut (doubles a round trip), + 1/limit after it
    success below 0.8 of the limit     nothing: an unused limit is no evidence
    429 sent under this epoch          limit = half of what was in flight at most; epoch + 1; gate shut for Retry-After
    429 sent under an older epoch      nothing: it is the same episode
    5xx, reset, stall                  no growth until ten outcomes are clean; three in the last ten count as a 429
    Retry-After above 60 s             gate opens after 60 s for a single probe, so that no server can freeze a run

Slow start and halving after TCP (RFC 5681); the saturation gate after Netflix concurrency-limits. A request passes
window and gate by `admit` and reports back by `settle`; pacers for requests and tokens a second belong between the two,
under the same two calls.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from stillhouse.rollouts.failures import FailureKind
from stillhouse.rollouts.limits.values import Caps, ControlSnapshot, Outcome, RequestSize, Ticket

_SATURATED: Final = 0.8
_MAX_GATE_S: Final = 60.0
_DEFAULT_GATE_S: Final = 1.0
_MIN_GATE_S: Final = 0.1
_RECENT: Final = 10
_OVERLOAD: Final = 3
_OVERLOAD_KINDS: Final = frozenset({FailureKind.TRANSIENT, FailureKind.STALL})


@dataclass(slots=True)
class RateControl:
    """Window and gate of one endpoint. Not thread-safe; `Controller` guards it."""

    initial: int
    """Requests in flight at the start."""
    caps: Caps = field(default_factory=Caps)
    """What the user allows at most."""
    reason: str = "start"
    in_flight: int = 0
    num_rate_limited: int = 0
    num_cuts: int = 0
    _limit: float = field(init=False)
    _peak: int = 0
    _gate_until: float = float("-inf")
    _half_open: bool = False
    _probing: bool = False
    _recent: deque[bool] = field(default_factory=lambda: deque(maxlen=_RECENT))

    def __post_init__(self) -> None:
        self._limit = float(min(self.initial, self.caps.concurrency))

    @property
    def limit(self) -> int:
        """Requests that may be in flight now."""
        return max(1, min(int(self._limit), self.caps.concurrency))

    def admit(self, size: RequestSize, now: float) -> Ticket | None:
        """Leave to send a request now, or None: then a settled request or `wait_s` tells when to ask again."""
        if now < self._gate_until or self._probing:
            return None
        if self._half_open:
            self._probing = True
        elif self.in_flight >= self.limit:
            return None
        self.in_flight += 1
        self._peak = max(self._peak, self.in_flight)
        return Ticket(
            epoch=self.num_cuts,
            ahead=self.in_flight - 1,
            sent_at=now,
            tokens=0.0,
            characters=size.prompt_characters,
            saturated=self.in_flight >= _SATURATED * self.limit,
            probe=self._probing,
        )

    def wait_s(self, now: float) -> float | None:
        """Seconds until the gate opens; None where only a settled request can help."""
        return self._gate_until - now if now < self._gate_until else None

    def settle(self, ticket: Ticket, outcome: Outcome | None, now: float) -> None:
        """Takes note of how a request ended; None for one that was given up on our side."""
        # Of a burst only the last is sent into a full window, but all of them have been part of one.
        saturated = ticket.saturated or self.in_flight >= _SATURATED * self.limit
        self.in_flight -= 1
        if ticket.probe:
            self._probing = False
            self._half_open = outcome is None
        if outcome is None:
            return
        if outcome.kind is FailureKind.RATE:
            self.num_rate_limited += 1
            if ticket.epoch == self.num_cuts:
                self._shut(outcome.retry_after_s, now)
                self._cut("429" if outcome.retry_after_s is None else f"429, retry after {outcome.retry_after_s:g} s")
            return
        self._recent.append(outcome.kind in _OVERLOAD_KINDS)
        if outcome.kind in _OVERLOAD_KINDS:
            if sum(self._recent) >= _OVERLOAD and ticket.epoch == self.num_cuts:
                self._cut(f"{sum(self._recent)} of the last {len(self._recent)} answers failed")
        elif outcome.kind is None and saturated and not any(self._recent):
            self._grow()

    def _grow(self) -> None:
        if self._limit >= self.caps.concurrency:
            return
        slow_start = self.num_cuts == 0
        self._limit = min(self._limit + (1.0 if slow_start else 1.0 / self._limit), float(self.caps.concurrency))
        if self._limit >= self.caps.concurrency:
            self.reason = f"runtime.max_concurrency is {self.caps.concurrency}"
        elif slow_start:
            self.reason = "growing: nothing refused yet"

    def _cut(self, why: str) -> None:
        before = self.limit
        self._limit = max(1.0, min(self._limit, self._peak) / 2)
        self.num_cuts += 1
        self._peak = self.in_flight
        self._recent.clear()
        self.reason = f"cut from {before}: {why}"

    def _shut(self, retry_after_s: float | None, now: float) -> None:
        wait = _DEFAULT_GATE_S if retry_after_s is None else retry_after_s
        self._gate_until = now + min(max(wait, _MIN_GATE_S), _MAX_GATE_S)
        self._half_open = wait > _MAX_GATE_S

    def snapshot(self, now: float, waiting: int) -> ControlSnapshot:
        """The state at `now`, with `waiting` requests that have not been admitted."""
        return ControlSnapshot(
            limit=self.limit,
            in_flight=self.in_flight,
            waiting=waiting,
            gate_s=max(0.0, self._gate_until - now),
            reason=self.reason,
            num_rate_limited=self.num_rate_limited,
            num_cuts=self.num_cuts,
        )
