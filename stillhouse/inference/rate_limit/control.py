"""`RateControl`: whether a request may be sent now. A pure state machine, clock passed in.

    admit     gate open, room in the window, both pacers ready: a ticket, else None
    settle    success teaches sizes and lets the window grow; a refusal limits what it was about; headers set the pacers
    wait_s    seconds until admit may answer otherwise; None where only a settled request can help

A ticket carries the epoch of its sending. A refusal of an older epoch belongs to an episode that has been dealt with:
it is counted and changes nothing else, so that neither a burst of refusals cuts twice nor late ones prolong a wait.

    refusal about          what it does
    requests or tokens     sets the pace of that one; shuts the gate for the time of Retry-After
    the number in flight   cuts the window; shuts the gate only where no answer is to make room, or where it is a guess
    it does not say        is judged by `Attribution`; what was held back for the other reason goes free

Whatever it was about, a refused request counts for nothing.
"""

import math
from dataclasses import dataclass
from typing import Final

from stillhouse.inference.failures import FailureKind
from stillhouse.inference.rate_limit.attribution import Attribution
from stillhouse.inference.rate_limit.headers import LimitScope, RateLimits
from stillhouse.inference.rate_limit.pacer import Pacer, Since
from stillhouse.inference.rate_limit.values import (
    Caps,
    ControlSnapshot,
    LearntLimits,
    Outcome,
    RequestSize,
    Ticket,
    TokenEstimates,
)
from stillhouse.inference.rate_limit.window import Window

_START_S: Final = 0.1  # the first requests are spread over this time, so that a low limit refuses only a few of them
_START: Final = 20
"""Requests sent in that time at most: a start that the user set is approached at this pace, and by answers."""
_PER_ANSWER: Final = 4
"""Requests that each answer allows sooner, its own successor among them; as fast as the window grows by itself."""
# What held the last request back.
_NOTHING, _GATE, _WINDOW, _REQUESTS, _TOKENS = range(5)
_FAILED: Final = frozenset({FailureKind.TRANSIENT, FailureKind.STALL})
_MAX_GATE_S: Final = 60.0
_LONG_WAIT: Final = 10.0
"""A Retry-After of more latencies than this, and seconds, means a rate: a slot in flight is free after one."""


@dataclass(slots=True)
class _Gate:
    """Shut until a Retry-After has passed; after a minute, half open until one request has passed.

    Only the first refusal of an episode shuts it, so that late refusals cannot prolong it, and never for more than a
    minute: then a single request tries whether it may open, so that no server can freeze a run.
    """

    until: float = -math.inf
    half_open: bool = False
    """Only one request at a time may pass, until one is answered."""
    probing: bool = False

    def shut(self, wait_s: float, now: float) -> None:
        self.until = max(self.until, now + min(wait_s, _MAX_GATE_S))
        self.half_open = self.half_open or wait_s > _MAX_GATE_S


class RateControl:
    """Window, pacers and gate of one endpoint. Not thread-safe; `Controller` guards it.

    Args:
        initial: requests in flight at the start.
        caps: what the user allows.
        learnt: by an earlier process.
        is_known: `initial` is what the server takes, so that the window begins and stays there.
    """

    def __init__(
        self, initial: int, caps: Caps | None = None, learnt: LearntLimits | None = None, *, is_known: bool = False
    ) -> None:
        caps = caps or Caps()
        self.caps = caps
        self.num_rate_limited = 0
        self.num_cuts = 0
        self._initial = initial
        self._is_known = is_known
        self._window = Window(min(initial, caps.concurrency), caps.concurrency)
        self._requests = Pacer(cap=_per_second(caps.requests_per_minute))
        self._tokens = Pacer(cap=_per_second(caps.tokens_per_minute), estimated=True)
        self._gate = _Gate()
        self._sizes = TokenEstimates()
        self._attribution = Attribution()
        self._first_send = -math.inf
        self._num_sent = 0
        self._num_answered = 0
        self._tokens_sent = 0.0
        self._latency_s = 1.0  # of a usual answer
        self._before_cut = 1  # the window before it was cut on a guess, restored if the guess was wrong
        self._blocker = _NOTHING
        if learnt is not None:
            if learnt.in_flight is not None:
                self._window.remember(learnt.in_flight)
            if learnt.requests_per_second is not None:
                self._requests.remember(learnt.requests_per_second)
            if learnt.tokens_per_second is not None:
                self._tokens.remember(learnt.tokens_per_second)

    @property
    def limit(self) -> int:
        """Requests that may usefully be in flight now."""
        return self._window.limit

    @property
    def in_flight(self) -> int:
        return self._window.in_flight

    def admit(self, size: RequestSize, now: float) -> Ticket | None:
        """Permission to send a request now, or None until a request is settled or `wait_s` has passed."""
        window, gate = self._window, self._gate
        if now < gate.until or gate.probing:
            self._blocker = _GATE
            return None
        if window.in_flight >= window.limit:
            self._blocker = _WINDOW
            return None
        if self._requests.wait_s(now) > 0.0:
            self._blocker = _REQUESTS
            return None
        if self._tokens.wait_s(now) > 0.0:
            self._blocker = _TOKENS
            return None
        if now < self._start_at():
            return None
        ahead = window.in_flight
        tokens = self._sizes.estimate(size.prompt_characters, size.max_tokens, surely=self._tokens.cap != math.inf)
        if not self._num_sent:
            self._first_send = now
        self._num_sent += 1
        self._tokens_sent += tokens
        self._requests.take(1.0, now)
        self._tokens.take(tokens, now)
        gate.probing = gate.half_open
        window.enter(now)
        return Ticket(
            self.num_cuts,
            ahead,
            now,
            tokens,
            size.prompt_characters,
            size.max_tokens,
            gate.half_open,
            self._num_sent,
            self._tokens_sent,
        )

    def wait_s(self, now: float) -> float | None:
        """Seconds until `admit` may answer otherwise; None where only a settled request can help."""
        if self._gate.probing:
            return None
        if now < self._gate.until:
            return self._gate.until - now
        if self._window.in_flight >= self._window.limit:
            return None
        wait = max(self._requests.wait_s(now), self._tokens.wait_s(now))
        return max(wait, self._start_at() - now, 0.0)

    def _start_at(self) -> float:
        """When the next of the first requests may be sent; long ago once they are."""
        if self._is_known or self._num_sent >= self._initial:
            return -math.inf
        num_due = self._num_sent - _PER_ANSWER * self._num_answered
        return self._first_send + num_due * _START_S / min(self._initial, _START)

    def settle(self, ticket: Ticket, outcome: Outcome | None, now: float) -> None:
        """Records how a request ended; None for one that was cancelled.

        Raises:
            ValueError: the ticket was settled before.
        """
        if ticket.settled:
            raise ValueError(f"the request sent at {ticket.sent_at:.3f} s is settled twice; expected once")
        ticket.settled = True
        self._window.in_flight -= 1
        if ticket.probe:
            self._gate.probing = False
            self._gate.half_open = self._gate.half_open and outcome is None
        if outcome is None:
            return
        kind = outcome.kind
        if outcome.limits is not None:
            self._read(outcome.limits, ticket, now)
        if kind is FailureKind.RATE:
            self._refused(ticket, outcome, now)
        elif kind in _FAILED and not self._is_known:
            if self._window.fail() and ticket.epoch == self.num_cuts:
                self._window.overload(now)
                self._begin_epoch()
        elif kind is None:
            self._answered(ticket, outcome, now)

    def _answered(self, ticket: Ticket, outcome: Outcome, now: float) -> None:
        self._num_answered += 1
        self._latency_s += 0.05 * (now - ticket.sent_at - self._latency_s)
        self._window.succeed(ticket.sent_at)
        self._attribution.accept(ticket.ahead, ticket.epoch)
        if outcome.completion_tokens is not None:
            prompt = outcome.prompt_tokens or 0
            self._sizes.learn(ticket.characters, prompt, outcome.completion_tokens)
            if not self._sizes.reserves_all:
                self._tokens.correct(prompt + outcome.completion_tokens - ticket.tokens, ticket.sent_at)

    def _refused(self, ticket: Ticket, outcome: Outcome, now: float) -> None:
        self.num_rate_limited += 1
        if self._is_known:
            # Requests that were given up keep their places until the server notices.
            self._forgive(ticket)
            self._shut(outcome.retry_after_s, now)
            return
        if ticket.epoch != self.num_cuts:
            self._count_late(ticket, outcome.scope)
            return
        scope = outcome.scope or self._guess(ticket, outcome.retry_after_s or 0.0)
        if scope is LimitScope.CONCURRENCY:
            self._refused_in_flight(ticket, outcome, now)
        else:
            self._refused_rate(scope, ticket, outcome, now)
        self._begin_epoch()

    def _count_late(self, ticket: Ticket, scope: LimitScope | None) -> None:
        """Counts a refusal of an earlier episode."""
        self._forgive(ticket)
        if scope is None:
            scope = LimitScope.REQUESTS if self._attribution.lean > 0 else LimitScope.CONCURRENCY
        if scope is LimitScope.CONCURRENCY:
            self._window.count_refusal(ticket.sent_at)
        else:
            (self._requests if scope is LimitScope.REQUESTS else self._tokens).count_refusal()

    def _guess(self, ticket: Ticket, retry_after_s: float) -> LimitScope:
        """What a refusal without a reason was about; lifts the limit learnt for the other reason."""
        is_rate = self._attribution.refuse(ticket.ahead)
        is_long = retry_after_s > _LONG_WAIT * max(self._latency_s, 1.0)
        if is_rate or (self._attribution.lean == 0 and is_long):
            if self._requests.pace == math.inf:
                self._window.restore(self._before_cut)
            return LimitScope.REQUESTS
        if not self._requests.from_headers:
            self._requests.forget()
        return LimitScope.CONCURRENCY

    def _refused_in_flight(self, ticket: Ticket, outcome: Outcome, now: float) -> None:
        lean, is_stated = self._attribution.lean, outcome.scope is not None
        if lean <= 0 and not self._window.is_cut:
            self._before_cut = self._window.limit
        self._window.refuse(ticket.ahead, ticket.sent_at, now, self._latency_s, sure=is_stated or lean < 0)
        self._forgive(ticket)
        # Any answer makes room; to wait longer would leave slots unused.
        if ticket.ahead == 0 or (not is_stated and lean >= 0):
            self._shut(outcome.retry_after_s, now)

    def _refused_rate(self, scope: LimitScope, ticket: Ticket, outcome: Outcome, now: float) -> None:
        gate_s = min(outcome.retry_after_s or 0.0, _MAX_GATE_S)
        num_since = self._num_sent - ticket.num_sent
        if scope is LimitScope.TOKENS:
            since = Since(self._tokens_sent - ticket.tokens_sent, num_since)
            self._tokens.refuse(ticket.tokens, since, ticket.sent_at, now, gate_s)
            self._requests.forgive(1.0, ticket.sent_at)
        else:
            self._requests.refuse(1.0, Since(num_since, num_since), ticket.sent_at, now, gate_s)
            self._tokens.forgive(ticket.tokens, ticket.sent_at)
        self._shut(outcome.retry_after_s, now)

    def _shut(self, retry_after_s: float | None, now: float) -> None:
        if retry_after_s is not None:
            self._gate.shut(retry_after_s, now)
            self._requests.pause(min(retry_after_s, _MAX_GATE_S))
            self._tokens.pause(min(retry_after_s, _MAX_GATE_S))

    def _forgive(self, ticket: Ticket) -> None:
        self._requests.forgive(1.0, ticket.sent_at)
        self._tokens.forgive(ticket.tokens, ticket.sent_at)

    def _begin_epoch(self) -> None:
        self.num_cuts += 1
        self._attribution.begin_epoch(self.num_cuts, self._window.limit)

    def _read(self, limits: RateLimits, ticket: Ticket, now: float) -> None:
        num_since = self._num_sent - ticket.num_sent
        if (stated := limits.requests) is not None and stated.limit is not None:
            self._requests.set_from_headers(stated.limit / 60.0, stated.remaining, num_since, ticket.sent_at, now)
        if (stated := limits.tokens) is not None and stated.limit is not None:
            if stated.remaining is not None and self._sizes.mean_tokens:
                self._sizes.watch(stated.remaining, self._num_sent, ticket.max_tokens)
            reserved = self._tokens_sent - ticket.tokens_sent
            tokens_since = reserved if self._sizes.reserves_all else num_since * self._sizes.mean_tokens
            self._tokens.set_from_headers(stated.limit / 60.0, stated.remaining, tokens_since, ticket.sent_at, now)

    def cap(self, caps: Caps) -> None:
        self.caps = caps
        self._window.set_cap(caps.concurrency)
        self._requests.set_cap(_per_second(caps.requests_per_minute))
        self._tokens.set_cap(_per_second(caps.tokens_per_minute))

    def learnt(self) -> LearntLimits:
        return LearntLimits(
            self._window.limit if self._window.is_cut else None,
            None if self._requests.rate == math.inf else self._requests.rate,
            None if self._tokens.rate == math.inf else self._tokens.rate,
        )

    @property
    def reason(self) -> str:
        """What limits requests and how that is known, for people."""
        if self._blocker == _REQUESTS:
            return self._requests.reason("requests", "runtime.max_requests_per_minute")
        if self._blocker == _TOKENS:
            return self._tokens.reason("tokens", "runtime.max_tokens_per_minute")
        if self._blocker == _GATE:
            return "waiting as long as the endpoint asked"
        if self._is_known and self.limit == self._initial:
            return f"this run's server takes {self.limit} at once"
        return self._window.reason

    def snapshot(self, now: float, waiting: int) -> ControlSnapshot:
        """The state at `now`, with `waiting` requests that have not been admitted."""
        return ControlSnapshot(
            limit=self.limit,
            in_flight=self.in_flight,
            waiting=waiting,
            gate_s=max(0.0, self._gate.until - now),
            reason=self.reason,
            num_rate_limited=self.num_rate_limited,
            num_cuts=self.num_cuts,
            requests_per_minute=_per_minute(self._requests.pace),
            tokens_per_minute=_per_minute(self._tokens.pace),
        )


def _per_second(per_minute: float | None) -> float:
    return math.inf if per_minute is None else per_minute / 60.0


def _per_minute(per_second: float) -> float | None:
    return None if per_second == math.inf else per_second * 60.0
