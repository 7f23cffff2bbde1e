"""`RateControl`: whether a request may be sent now. A pure state machine, clock passed in.

    admit     gate open, room in the window, both pacers ready: a ticket, else None
    settle    success teaches sizes and lets the window grow; a refusal goes to `Refusals`; headers set the pacers
    wait_s    seconds until admit may answer otherwise; None where only a settled request can help

A ticket carries the epoch of its sending. A refusal of an older epoch belongs to an episode that has been dealt with:
it is counted and changes nothing else, so that neither a burst of refusals cuts twice nor late ones prolong a wait.
"""

import math
from typing import Final

from stillhouse.inference.failures import FailureKind
from stillhouse.inference.rate_limit.headers import RateLimits
from stillhouse.inference.rate_limit.pacer import Pacer, Since
from stillhouse.inference.rate_limit.refusals import Attribution, Refusals, RetryAfterGate
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

_START_S: Final = 0.1
"""The first requests are spread over this time, so that a low limit refuses only a few of them."""
# What held the last request back.
_NOTHING, _GATE, _WINDOW, _REQUESTS, _TOKENS = range(5)
_FAILED: Final = frozenset({FailureKind.TRANSIENT, FailureKind.STALL})


class RateControl:
    """Window, pacers and gate of one endpoint. Not thread-safe; `Controller` guards it.

    Args:
        initial: requests in flight at the start.
        caps: limits set by the user.
        learnt: limits learnt by an earlier process.
    """

    def __init__(self, initial: int, caps: Caps | None = None, learnt: LearntLimits | None = None) -> None:
        caps = caps or Caps()
        self.caps = caps
        self.num_rate_limited = 0
        self.num_cuts = 0
        self._initial = initial
        self._window = Window(min(initial, caps.concurrency), caps.concurrency)
        self._requests = Pacer(cap=_per_second(caps.requests_per_minute))
        self._tokens = Pacer(cap=_per_second(caps.tokens_per_minute), estimated=True)
        self._gate = RetryAfterGate()
        self._sizes = TokenEstimates()
        self._attribution = Attribution()
        self._refusals = Refusals(self._window, self._requests, self._tokens, self._gate, self._attribution)
        self._first_send = -math.inf
        self._num_sent = 0
        self._tokens_sent = 0.0
        self._latency_s = 1.0
        self._blocker = _NOTHING
        if learnt is not None:
            self._remember(learnt)

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
        if self._num_sent < self._initial and now < self._first_send + self._num_sent * _START_S / self._initial:
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
        if not self._window.has_room:
            return None
        wait = max(self._requests.wait_s(now), self._tokens.wait_s(now))
        if self._num_sent < self._initial:
            wait = max(wait, self._first_send + self._num_sent * _START_S / self._initial - now)
        return max(wait, 0.0)

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
            self._gate.settle_probe(answered=outcome is not None)
        if outcome is None:
            return
        kind = outcome.kind
        if outcome.limits is not None:
            self._read(outcome.limits, ticket, now)
        if kind is FailureKind.RATE:
            self._refused(ticket, outcome, now)
        elif kind in _FAILED:
            if self._window.fail() and ticket.epoch == self.num_cuts:
                self._window.overload(now)
                self._begin_epoch()
        elif kind is None:
            self._answered(ticket, outcome, now)

    def _answered(self, ticket: Ticket, outcome: Outcome, now: float) -> None:
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
        if ticket.epoch != self.num_cuts:
            self._refusals.meet_late(ticket, outcome.scope)
            return
        since = Since(self._tokens_sent - ticket.tokens_sent, self._num_sent - ticket.num_sent)
        self._refusals.meet_first(ticket, outcome, since, now, self._latency_s)
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self.num_cuts += 1
        self._attribution.begin_epoch(self.num_cuts, self._window.limit)

    def _read(self, limits: RateLimits, ticket: Ticket, now: float) -> None:
        if (allowance := limits.requests) is not None and allowance.limit is not None:
            self._requests.set_from_headers(
                allowance.limit / 60.0, allowance.remaining, self._num_sent - ticket.num_sent, ticket.sent_at, now
            )
        if (allowance := limits.tokens) is not None and allowance.limit is not None:
            if allowance.remaining is not None and self._sizes.mean_tokens:
                self._sizes.watch(allowance.remaining, self._num_sent, ticket.max_tokens)
            num_since = self._num_sent - ticket.num_sent
            reserves_all = self._sizes.reserves_all
            self._tokens.set_from_headers(
                allowance.limit / 60.0,
                allowance.remaining,
                self._tokens_sent - ticket.tokens_sent if reserves_all else num_since * self._sizes.mean_tokens,
                ticket.sent_at,
                now,
            )

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

    def _remember(self, learnt: LearntLimits) -> None:
        if learnt.in_flight is not None:
            self._window.remember(learnt.in_flight)
        if learnt.requests_per_second is not None:
            self._requests.remember(learnt.requests_per_second)
        if learnt.tokens_per_second is not None:
            self._tokens.remember(learnt.tokens_per_second)

    @property
    def reason(self) -> str:
        """What limits requests and how that is known, for people."""
        if self._blocker == _REQUESTS:
            return self._requests.reason("requests", "runtime.max_requests_per_minute")
        if self._blocker == _TOKENS:
            return self._tokens.reason("tokens", "runtime.max_tokens_per_minute")
        if self._blocker == _GATE:
            return "waiting as long as the endpoint asked"
        return self._window.reason

    def snapshot(self, now: float, waiting: int) -> ControlSnapshot:
        """The state at `now`, with `waiting` requests that have not been admitted."""
        return ControlSnapshot(
            limit=self.limit,
            in_flight=self.in_flight,
            waiting=waiting,
            gate_s=max(0.0, self._gate.wait_s(now)),
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
