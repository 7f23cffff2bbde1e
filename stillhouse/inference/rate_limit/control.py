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
from typing import Final

from stillhouse.inference.failures import FailureKind
from stillhouse.inference.rate_limit.attribution import Attribution
from stillhouse.inference.rate_limit.brakes import MAX_GATE_S, Brakes, Reason
from stillhouse.inference.rate_limit.headers import LimitScope, RateLimits
from stillhouse.inference.rate_limit.pacer import Since
from stillhouse.inference.rate_limit.values import (
    Caps,
    ControlSnapshot,
    LearntLimits,
    Outcome,
    RequestSize,
    Ticket,
    TokenEstimates,
)

_START_S: Final = 0.1  # the first requests are spread over this time, so that a low limit refuses only a few of them
_START: Final = 20
"""Requests sent in that time at most: a start that the user set is approached at this pace, and by answers."""
_PER_ANSWER: Final = 4
"""Requests that each answer allows sooner, its own successor among them; as fast as the window grows by itself."""
_FAILED: Final = frozenset({FailureKind.TRANSIENT, FailureKind.STALL})
_LONG_WAIT: Final = 10.0
"""A Retry-After of more latencies than this, and seconds, means a rate: a slot in flight is free after one."""


class RateControl:
    """The control of one endpoint. Not thread-safe; `Controller` guards it.

    `initial` requests may be in flight at the start; where it `is_known` that the server takes them, the window stays
    there. `learnt` comes from an earlier process.
    """

    def __init__(
        self, initial: int, caps: Caps | None = None, learnt: LearntLimits | None = None, *, is_known: bool = False
    ) -> None:
        self.num_cuts = 0
        self._initial = initial
        self._is_known = is_known
        self.brakes = Brakes(initial, caps or Caps(), learnt)
        self._sizes = TokenEstimates()
        self._attribution = Attribution()
        self._first_send = -math.inf
        self._num_sent = 0
        self._num_answered = 0
        self._tokens_sent = 0.0
        self._latency_s = 1.0  # of a usual answer
        self._before_cut = 1  # the window before it was cut on a guess, restored if the guess was wrong
        self._reason: Reason = self.brakes.window.reason

    @property
    def limit(self) -> int:
        """Return the requests that may usefully be in flight now."""
        return self.brakes.window.limit

    def admit(self, size: RequestSize, now: float) -> Ticket | None:
        """Return permission to send a request now, or None until a request is settled or `wait_s` has passed."""
        brakes = self.brakes
        if (reason := brakes.blocker(now)) is not None:
            self._reason = reason
            return None
        if now < self._start_at():
            return None
        ahead = brakes.window.in_flight
        tokens = self._sizes.estimate(size.prompt_characters, size.max_tokens, surely=brakes.tokens.cap != math.inf)
        if not self._num_sent:
            self._first_send = now
        self._num_sent += 1
        self._tokens_sent += tokens
        brakes.take(tokens, now)
        sums = (self._num_sent, self._tokens_sent)
        return Ticket(self.num_cuts, ahead, now, tokens, size, brakes.gate.half_open, *sums)

    def wait_s(self, now: float) -> float | None:
        """Return the seconds until `admit` may answer otherwise; None where only a settled request can help."""
        wait_s = self.brakes.wait_s(now)
        return None if wait_s is None else max(wait_s, self._start_at() - now, 0.0)

    def _start_at(self) -> float:
        """Return when the next of the first requests may be sent; long ago once they are."""
        if self._is_known or self._num_sent >= self._initial:
            return -math.inf
        num_due = self._num_sent - _PER_ANSWER * self._num_answered
        return self._first_send + num_due * _START_S / min(self._initial, _START)

    def settle(self, ticket: Ticket, outcome: Outcome | None, now: float) -> None:
        """Record how a request ended, None for a cancelled one; raise ValueError if the ticket was settled before."""
        if ticket.settled:
            raise ValueError(f"the request sent at {ticket.sent_at:.3f} s is settled twice; expected once")
        ticket.settled = True
        self.brakes.give_back(ticket, is_cancelled=outcome is None)
        if outcome is None:
            return
        kind = outcome.kind
        if outcome.limits is not None:
            self._read(outcome.limits, ticket, now)
        if kind is FailureKind.RATE:
            self._refused(ticket, outcome, now)
        elif kind in _FAILED and not self._is_known:
            if self.brakes.window.fail() and ticket.epoch == self.num_cuts:
                self.brakes.window.overload(now)
                self._begin_epoch()
        elif kind is None:
            self._answered(ticket, outcome, now)

    def _answered(self, ticket: Ticket, outcome: Outcome, now: float) -> None:
        self._num_answered += 1
        self._latency_s += 0.05 * (now - ticket.sent_at - self._latency_s)
        self.brakes.window.succeed(ticket.sent_at)
        self._attribution.accept(ticket.ahead, ticket.epoch)
        if outcome.completion_tokens is not None:
            prompt = outcome.prompt_tokens or 0
            self._sizes.learn(ticket.size.prompt_characters, prompt, outcome.completion_tokens)
            if not self._sizes.reserves_all:
                self.brakes.tokens.correct(prompt + outcome.completion_tokens - ticket.tokens, ticket.sent_at)

    def _refused(self, ticket: Ticket, outcome: Outcome, now: float) -> None:
        if self._is_known:
            # Requests that were given up keep their places until the server notices.
            self.brakes.forgive(ticket)
            self.brakes.shut(outcome.retry_after_s, now)
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
        self.brakes.forgive(ticket)
        if scope is None:
            scope = LimitScope.REQUESTS if self._attribution.lean > 0 else LimitScope.CONCURRENCY
        if scope is LimitScope.CONCURRENCY:
            self.brakes.window.count_refusal(ticket.sent_at)
        else:
            (self.brakes.requests if scope is LimitScope.REQUESTS else self.brakes.tokens).count_refusal()

    def _guess(self, ticket: Ticket, retry_after_s: float) -> LimitScope:
        """Return what a refusal without a reason was about; lift the limit learnt for the other reason."""
        is_rate = self._attribution.refuse(ticket.ahead)
        is_long = retry_after_s > _LONG_WAIT * max(self._latency_s, 1.0)
        if is_rate or (self._attribution.lean == 0 and is_long):
            if self.brakes.requests.pace == math.inf:
                self.brakes.window.restore(self._before_cut)
            return LimitScope.REQUESTS
        if not self.brakes.requests.from_headers:
            self.brakes.requests.forget()
        return LimitScope.CONCURRENCY

    def _refused_in_flight(self, ticket: Ticket, outcome: Outcome, now: float) -> None:
        lean, is_stated = self._attribution.lean, outcome.scope is not None
        if lean <= 0 and not self.brakes.window.is_cut:
            self._before_cut = self.brakes.window.limit
        self.brakes.window.refuse(ticket.ahead, ticket.sent_at, now, self._latency_s, sure=is_stated or lean < 0)
        self.brakes.forgive(ticket)
        # Any answer makes room; to wait longer would leave slots unused.
        if ticket.ahead == 0 or (not is_stated and lean >= 0):
            self.brakes.shut(outcome.retry_after_s, now)

    def _refused_rate(self, scope: LimitScope, ticket: Ticket, outcome: Outcome, now: float) -> None:
        gate_s = min(outcome.retry_after_s or 0.0, MAX_GATE_S)
        num_since = self._num_sent - ticket.num_sent
        requests = (self.brakes.requests, 1.0, num_since)
        tokens = (self.brakes.tokens, ticket.tokens, self._tokens_sent - ticket.tokens_sent)
        refused, other = (tokens, requests) if scope is LimitScope.TOKENS else (requests, tokens)
        pacer, amount, since = refused
        pacer.refuse(amount, Since(since, num_since), ticket.sent_at, now, gate_s)
        other[0].forgive(other[1], ticket.sent_at)
        self.brakes.shut(outcome.retry_after_s, now)

    def _begin_epoch(self) -> None:
        self.num_cuts += 1
        self._attribution.begin_epoch(self.num_cuts, self.brakes.window.limit)

    def _read(self, limits: RateLimits, ticket: Ticket, now: float) -> None:
        brakes, sent_at, num_since = self.brakes, ticket.sent_at, self._num_sent - ticket.num_sent
        if (stated := limits.requests) is not None and stated.limit is not None:
            brakes.requests.set_from_headers(stated.limit / 60.0, stated.remaining, num_since, sent_at, now)
        if (stated := limits.tokens) is not None and stated.limit is not None:
            if stated.remaining is not None and self._sizes.mean_tokens:
                self._sizes.watch(stated.remaining, self._num_sent, ticket.size.max_tokens)
            reserved = self._tokens_sent - ticket.tokens_sent
            tokens_since = reserved if self._sizes.reserves_all else num_since * self._sizes.mean_tokens
            brakes.tokens.set_from_headers(stated.limit / 60.0, stated.remaining, tokens_since, sent_at, now)

    @property
    def reason(self) -> str:
        """Return what limits requests and how that is known, for people."""
        if self._is_known and self.limit == self._initial and self._reason == self.brakes.window.reason:
            return f"this run's server takes {self.limit} at once"
        return self._reason()

    def snapshot(self, waiting: int) -> ControlSnapshot:
        """Return the state, with `waiting` requests that have not been admitted."""
        return ControlSnapshot(
            limit=self.limit,
            in_flight=self.brakes.window.in_flight,
            waiting=waiting,
            reason=self.reason,
            requests_per_minute=_per_minute(self.brakes.requests.pace),
            tokens_per_minute=_per_minute(self.brakes.tokens.pace),
        )


def _per_minute(per_second: float) -> float | None:
    return None if per_second == math.inf else per_second * 60.0
