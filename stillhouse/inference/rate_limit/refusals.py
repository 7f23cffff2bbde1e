"""What a refusal was about, and what it does to that.

    about                  what it does
    requests or tokens     sets the pace of that one; shuts the gate for the time of Retry-After
    the number in flight   cuts the window; shuts the gate only where no answer is to make room, or where it is a guess
    it does not say        is judged by `Attribution`; what was held back for the other reason goes free
    a late one             is counted and changes nothing else

Whatever it was about, a refused request counts for nothing.

`RetryAfterGate`: nothing is sent before a Retry-After has passed. Only the first refusal of an episode shuts it, so
that late refusals cannot prolong it, and never for more than a minute: then a single request tries whether it may open,
so that no server can freeze a run.

`Attribution` judges a refusal without a reason by what was accepted under the same conditions. A limit in flight
separates cleanly: what it refuses had at least as many in flight ahead as the limit, what it accepts had fewer. A limit
on a rate does not care: it refuses with few in flight what it accepted with many a moment ago.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from stillhouse.inference.rate_limit.headers import LimitScope
from stillhouse.inference.rate_limit.pacer import Pacer, Since
from stillhouse.inference.rate_limit.values import Outcome, Ticket
from stillhouse.inference.rate_limit.window import Window

MAX_GATE_S: Final = 60.0
_CLEARLY_FEWER: Final = 0.75
"""Share of what was accepted below which a refusal cannot be about the number in flight."""
_OVERLAP: Final = 3
"""Requests accepted at the limit after which a refusal below it speaks for a rate."""
_MIN_ACCEPTED: Final = 5
"""Requests accepted between two refusals for the second to say anything about the number in flight."""
_MAX_LEAN: Final = 3
"""Evidence that counts; more would make it slow to change its mind."""
_REMEMBERED: Final = 4
_MAX_SPREAD: Final = 0.2
"""Share by which the last refusals may differ in the number ahead and still be about one limit in flight."""
_RISEN: Final = 1.2
"""Times the highest of them above which a limit in flight has risen."""
_LONG_WAIT: Final = 10.0
"""A Retry-After of more latencies than this, and seconds, means a rate: a slot in flight is free after one."""


@dataclass(slots=True)
class RetryAfterGate:
    """Shut until a time; after a minute, half open until one request has passed."""

    until: float = -math.inf
    half_open: bool = False
    """Only one request at a time may pass, until one is answered."""
    probing: bool = False

    def shut(self, wait_s: float, now: float) -> None:
        self.until = max(self.until, now + min(wait_s, MAX_GATE_S))
        self.half_open = self.half_open or wait_s > MAX_GATE_S

    def wait_s(self, now: float) -> float:
        """Seconds until it opens; 0 or less when it is open."""
        return self.until - now

    def settle_probe(self, *, answered: bool) -> None:
        """The request that was let through alone has ended."""
        self.probing = False
        if answered:
            self.half_open = False


@dataclass(slots=True)
class Attribution:
    """Evidence so far: a positive `lean` for a rate, else for the number in flight."""

    lean: int = 0
    _epoch: int = 0
    _num_accepted: int = 0
    _proven: int = 0
    _proven_before: int = 0
    _num_at_limit: int = 0
    _limit: int = 1
    _aheads: deque[int] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    @property
    def is_rate(self) -> bool:
        """Whether refusals are best explained by a rate."""
        return self.lean > 0

    def accept(self, ahead: int, epoch: int) -> None:
        """A request with `ahead` others in flight before it was answered."""
        if ahead >= self._proven:
            self._proven = ahead + 1
        if epoch == self._epoch:
            self._num_accepted += 1
            if ahead >= self._limit - 1:
                self._num_at_limit += 1

    def refuse(self, ahead: int) -> bool:
        """A request with `ahead` others in flight before it was refused; whether that speaks for a rate."""
        proven = max(self._proven, self._proven_before)
        if self.lean < 0 and self._aheads and ahead > _RISEN * max(self._aheads):
            # A limit known to be one in flight was probed and has risen.
            self._aheads.clear()
        before = self._aheads[-1] if self._aheads else ahead
        self._aheads.append(ahead)
        spread = max(self._aheads) - min(self._aheads)
        if (
            (len(self._aheads) == _REMEMBERED and spread > max(2.0, _MAX_SPREAD * max(self._aheads)))
            or ahead < 1
            or ahead < _CLEARLY_FEWER * proven - 1
        ):
            self.lean = min(max(self.lean, 0) + 1, _MAX_LEAN)
        elif self._num_at_limit >= _OVERLAP and ahead < self._limit - max(1.0, 0.1 * self._limit):
            self.lean = min(self.lean + 1, _MAX_LEAN)
        elif (
            self._num_accepted >= _MIN_ACCEPTED
            and ahead >= self._proven
            and abs(ahead - before) <= max(1.0, 0.1 * ahead)
        ):
            self.lean = max(self.lean - 1, -_MAX_LEAN)
        return self.lean > 0

    def begin_epoch(self, epoch: int, limit: int) -> None:
        """Resets the counts after a cut to `limit` in flight."""
        self._epoch, self._limit = epoch, limit
        self._num_accepted = self._num_at_limit = 0
        self._proven_before, self._proven = self._proven, 0


@dataclass(slots=True)
class Refusals:
    """Applies each refusal to the parts of a `RateControl` that it concerns."""

    window: Window
    requests: Pacer
    tokens: Pacer
    gate: RetryAfterGate
    attribution: Attribution
    _before_cut: int = 1
    """The window before it was cut on a guess, restored if the guess was wrong."""

    def meet_first(self, ticket: Ticket, outcome: Outcome, since: Since, now: float, latency_s: float) -> None:
        """Handles the first refusal of an episode.

        Args:
            ticket: of the request.
            outcome: the refusal.
            since: tokens and requests sent after it.
            now: seconds.
            latency_s: of a usual answer.
        """
        scope = outcome.scope or self._guess(ticket, outcome.retry_after_s or 0.0, latency_s)
        if scope is LimitScope.CONCURRENCY:
            self._refused_in_flight(ticket, outcome, now, latency_s)
        else:
            self._refused_rate(scope, ticket, outcome, since, now)

    def meet_late(self, ticket: Ticket, scope: LimitScope | None) -> None:
        """Counts a refusal of an earlier episode."""
        self._forgive(ticket)
        if scope is None:
            scope = LimitScope.REQUESTS if self.attribution.is_rate else LimitScope.CONCURRENCY
        if scope is LimitScope.CONCURRENCY:
            self.window.count_refusal(ticket.sent_at)
        elif scope is LimitScope.REQUESTS:
            self.requests.count_refusal()
        else:
            self.tokens.count_refusal()

    def _guess(self, ticket: Ticket, retry_after_s: float, latency_s: float) -> LimitScope:
        """What a refusal without a reason was about; lifts the limit learnt for the other reason."""
        is_rate = self.attribution.refuse(ticket.ahead)
        if is_rate or (self.attribution.lean == 0 and retry_after_s > _LONG_WAIT * max(latency_s, 1.0)):
            if not self.requests.is_set:
                self.window.restore(self._before_cut)
            return LimitScope.REQUESTS
        if not self.requests.from_headers:
            self.requests.forget()
        return LimitScope.CONCURRENCY

    def _refused_in_flight(self, ticket: Ticket, outcome: Outcome, now: float, latency_s: float) -> None:
        lean, is_stated = self.attribution.lean, outcome.scope is not None
        if lean <= 0 and not self.window.is_cut:
            self._before_cut = self.window.limit
        self.window.refuse(ticket.ahead, ticket.sent_at, now, latency_s, sure=is_stated or lean < 0)
        self._forgive(ticket)
        # Any answer makes room; to wait longer would leave slots unused.
        if ticket.ahead == 0 or (not is_stated and lean >= 0):
            self._shut(outcome.retry_after_s, now)

    def _refused_rate(self, scope: LimitScope, ticket: Ticket, outcome: Outcome, since: Since, now: float) -> None:
        gate_s = min(outcome.retry_after_s or 0.0, MAX_GATE_S)
        if scope is LimitScope.TOKENS:
            self.tokens.refuse(ticket.tokens, since, ticket.sent_at, now, gate_s)
            self.requests.forgive(1.0, ticket.sent_at)
        else:
            self.requests.refuse(1.0, Since(since.sends, since.sends), ticket.sent_at, now, gate_s)
            self.tokens.forgive(ticket.tokens, ticket.sent_at)
        self._shut(outcome.retry_after_s, now)

    def _shut(self, retry_after_s: float | None, now: float) -> None:
        if retry_after_s is None:
            return
        self.gate.shut(retry_after_s, now)
        self.requests.pause(min(retry_after_s, MAX_GATE_S))
        self.tokens.pause(min(retry_after_s, MAX_GATE_S))

    def _forgive(self, ticket: Ticket) -> None:
        self.requests.forgive(1.0, ticket.sent_at)
        self.tokens.forgive(ticket.tokens, ticket.sent_at)
