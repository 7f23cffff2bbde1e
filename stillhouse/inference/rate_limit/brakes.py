"""`Brakes`: all that holds the requests to one endpoint back, in one place: a gate, a window and two pacers."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from stillhouse.inference.rate_limit.pacer import Pacer
from stillhouse.inference.rate_limit.values import Caps, LearntLimits, Ticket
from stillhouse.inference.rate_limit.window import Window

MAX_GATE_S: Final = 60.0


Reason = Callable[[], str]
"""What limits requests and how that is known, for people."""


@dataclass(slots=True)
class Gate:
    """Shut until a Retry-After has passed; after a minute, half open until one request has passed.

    Only the first refusal of an episode shuts it, so that late refusals cannot prolong it, and never for more than a
    minute: then a single request tries whether it may open, so that no server can freeze a run.
    """

    until: float = -math.inf
    half_open: bool = False
    """Only one request at a time may pass, until one is answered."""
    probing: bool = False

    def shut(self, wait_s: float, now: float) -> None:
        self.until = max(self.until, now + min(wait_s, MAX_GATE_S))
        self.half_open = self.half_open or wait_s > MAX_GATE_S


class Brakes:
    def __init__(self, initial: int, caps: Caps, learnt: LearntLimits | None = None) -> None:
        learnt = learnt or LearntLimits()
        self.gate = Gate()
        self.window = Window(min(initial, caps.concurrency), caps.concurrency)
        self.requests = Pacer("requests", _per_second(caps.requests_per_minute))
        self.tokens = Pacer("tokens", _per_second(caps.tokens_per_minute), estimated=True)
        if learnt.in_flight is not None:
            self.window.remember(learnt.in_flight)
        for pacer, rate in ((self.requests, learnt.requests_per_second), (self.tokens, learnt.tokens_per_second)):
            if rate is not None:
                pacer.remember(rate)

    def blocker(self, now: float) -> Reason | None:
        """Return the reason that holds a request back which would be sent now; None where nothing does."""
        if now < self.gate.until or self.gate.probing:
            return lambda: "waiting as long as the endpoint asked"
        if self.window.in_flight >= self.window.limit:
            return self.window.reason
        return next((pacer.reason for pacer in (self.requests, self.tokens) if pacer.wait_s(now) > 0.0), None)

    def wait_s(self, now: float) -> float | None:
        """Return the seconds until that may change; None where only a settled request can help."""
        if self.gate.probing:
            return None
        if now < self.gate.until:
            return self.gate.until - now
        if self.window.in_flight >= self.window.limit:
            return None
        return max(self.requests.wait_s(now), self.tokens.wait_s(now))

    def take(self, tokens: float, now: float) -> None:
        """Count a request that is sent."""
        self.requests.take(1.0, now)
        self.tokens.take(tokens, now)
        self.gate.probing = self.gate.half_open
        self.window.enter(now)

    def give_back(self, ticket: Ticket, *, is_cancelled: bool) -> None:
        """Count a request that has ended."""
        self.window.in_flight -= 1
        if ticket.probe:
            self.gate.probing = False
            self.gate.half_open = self.gate.half_open and is_cancelled

    def forgive(self, ticket: Ticket) -> None:
        """Let a refused request count for nothing."""
        self.requests.forgive(1.0, ticket.sent_at)
        self.tokens.forgive(ticket.tokens, ticket.sent_at)

    def shut(self, retry_after_s: float | None, now: float) -> None:
        if retry_after_s is not None:
            self.gate.shut(retry_after_s, now)
            for pacer in (self.requests, self.tokens):
                pacer.pause(min(retry_after_s, MAX_GATE_S))

    def cap(self, caps: Caps) -> None:
        self.window.set_cap(caps.concurrency)
        self.requests.set_cap(_per_second(caps.requests_per_minute))
        self.tokens.set_cap(_per_second(caps.tokens_per_minute))

    def learnt(self) -> LearntLimits:
        rates = (None if pacer.rate == math.inf else pacer.rate for pacer in (self.requests, self.tokens))
        return LearntLimits(self.window.limit if self.window.is_cut else None, *rates)


def _per_second(per_minute: float | None) -> float:
    return math.inf if per_minute is None else per_minute / 60.0
