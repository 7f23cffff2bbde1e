"""`Refusals`: what a refusal was about, and what it does to that.

    about                  what it does
    requests or tokens     sets the pace of that one; shuts the gate for as long as was asked
    the number in flight   cuts the window; shuts the gate only where no answer is to make room, or where it is a guess
    it does not say        is judged by `Attribution`; what was held back for the other reason goes free
    a late one             is counted and changes nothing else

Whatever it was about, a refused request counts for nothing.
"""

from dataclasses import dataclass
from typing import Final

from stillhouse.inference.rate_limit.attribution import Attribution
from stillhouse.inference.rate_limit.gate import MAX_GATE_S, Gate
from stillhouse.inference.rate_limit.headers import LimitScope
from stillhouse.inference.rate_limit.pacer import Pacer, Since
from stillhouse.inference.rate_limit.values import Outcome, Ticket
from stillhouse.inference.rate_limit.window import Window

_LONG_WAIT: Final = 10.0
"""Whoever asks to wait for more latencies than this, and seconds, means a rate: a place in flight is free after one."""


@dataclass(slots=True)
class Refusals:
    """Hands each refusal to the parts of a `RateControl` that it concerns."""

    window: Window
    requests: Pacer
    tokens: Pacer
    gate: Gate
    attribution: Attribution
    _before_cut: int = 1
    """The window before it was cut on a guess, to be restored where the guess was wrong."""

    def meet_first(self, ticket: Ticket, outcome: Outcome, since: Since, now: float, latency_s: float) -> None:
        """The first refusal of its episode.

        Args:
            ticket: of the request.
            outcome: the refusal.
            since: tokens and requests sent after it.
            now: seconds.
            latency_s: how long an answer usually takes.
        """
        scope = outcome.scope or self._guess(ticket, outcome.retry_after_s or 0.0, latency_s)
        if scope is LimitScope.CONCURRENCY:
            self._refused_in_flight(ticket, outcome, now, latency_s)
        else:
            self._refused_rate(scope, ticket, outcome, since, now)

    def meet_late(self, ticket: Ticket, scope: LimitScope | None) -> None:
        """A refusal of an episode that has been dealt with."""
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
        """What a refusal without a reason was about; what was held back for the other reason goes free."""
        is_rate = self.attribution.refuse(ticket.ahead)
        if is_rate or (self.attribution.lean == 0 and retry_after_s > _LONG_WAIT * max(latency_s, 1.0)):
            if not self.requests.is_set:
                self.window.restore(self._before_cut)
            return LimitScope.REQUESTS
        if not self.requests.told:
            self.requests.forget()
        return LimitScope.CONCURRENCY

    def _refused_in_flight(self, ticket: Ticket, outcome: Outcome, now: float, latency_s: float) -> None:
        lean, told = self.attribution.lean, outcome.scope is not None
        if lean <= 0 and not self.window.is_cut:
            self._before_cut = self.window.limit
        self.window.refuse(ticket.ahead, ticket.sent_at, now, latency_s, sure=told or lean < 0)
        self._forgive(ticket)
        # Any answer makes room; to wait for longer would leave what is served at once unused.
        if ticket.ahead == 0 or (not told and lean >= 0):
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
