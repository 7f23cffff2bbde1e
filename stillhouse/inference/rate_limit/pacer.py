"""`Pacer`: a limit on a rate, of requests or of tokens, known from headers or learnt from refusals.

event                              what it does
first refusal                      rate = accepted since the start / time, no less than a second
refusal after some were accepted   rate = by the chain of links between refusals (`Chain`)
refusal after none was accepted    the provider is closed (a fixed window, a far lower limit): waits twice as long
enough accepted since a refusal    goes above the rate, step by step, until refused again (`Probe`);
                                   what is accepted all the same is the rate from now on
headers                            rate = their limit, no probes; after refusals all the same it learns by itself

The pace is kept by a leaky bucket: each request delays the next one by its units over the pace. A request that comes
late, because an event loop or the window held it up, leaves the next on time, so that the pace is kept on average; idle
time is lost, as it is in the provider's bucket once that is full.
"""

import math
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from stillhouse.inference.rate_limit.rate_estimate import Chain, Link, Probe

_LATENESS_S: Final = 0.05  # lateness of a request that does not delay the next: a few turns of a busy event loop
_LATE_RATE: Final = 20.0
"""Units a second below which that is less in proportion, so that never more than one comes too early: a bucket of a
minute's sixtieth may hold just one request."""
_SHORT_OF: Final = 0.98  # the pace as a share of a learnt rate
_LEAST_SHORT_OF: Final = 0.95  # the same where sizes vary more than the bucket can bear
_SHORT_OF_STEP: Final = 0.005  # by how much refusals without a probe lower that share; others raise it by a fifth
_SHORT_OF_TOLD: Final = 0.99  # the pace as a share of a rate from headers
_MAX_SLACK_S: Final = 1.0
"""Slack if headers say that much remains: a bucket of a second's worth is never emptied at once."""
_CLEARLY: Final = 1.05
"""Times a request's units that must be replenished after a refusal, if units are known: next to no extra wait."""
_CLEARLY_ESTIMATED: Final = 3.0
"""The same if they are estimates: the next may be larger. At 1.05 every third probe was refused twice."""
_OFF_BY: Final = 2.0  # requests by which a count of accepted units may be wrong, where units are known
_OFF_BY_ESTIMATED: Final = 3.0
"""The same where they are estimates: at 2 a chain of tokens started over every minute for nothing."""
_RAISE: Final = 0.75
"""Share of the last step by which a rate rises that was too low: short of where it was refused, if it was."""
_LARGEST_FALL: Final = 4.0  # a single refusal never divides a rate by more
_MIN_LINK: Final = 4.0  # a link of fewer round trips says more about the requests in flight than about the rate
_FIRST_CLOSED_S: Final = 0.1  # first wait for a provider that has accepted nothing
_MAX_CLOSED_S: Final = 8.0  # longest wait for one that has closed: an eighth of a window of a minute
_GATE_FREE_S: Final = 1.0  # the part of a Retry-After in which a bucket fills; the rest does not count as elapsed
_COSTLY_S: Final = 10.0  # a Retry-After from which on the first rate of tokens is better too low than too high
_BUCKET_S: Final = 1.0
"""Assumed content of the bucket then, in seconds' worth. Without, it took three waits, not one."""
_DISTRUST: Final = 3  # refusals in a row that contradict headers until these are no longer believed
_DISTRUST_S: Final = 60.0  # longest time between them


def _slack_s(rate: float) -> float:
    """Return the lateness that does not delay the next request, for a bucket that fills by `rate` units a second."""
    return min(_LATENESS_S, _LATENESS_S * rate / _LATE_RATE)


class Since(NamedTuple):
    """Sent after a request."""

    amount: float
    sends: int


@dataclass(slots=True)
class Pacer:
    """Spaces requests. Rates are units a second."""

    units: Literal["requests", "tokens"] = "requests"
    cap: float = math.inf
    estimated: bool = False
    """True if the units of a request are known only once it is answered."""
    rate: float = math.inf
    """The limit as far as it is known."""
    from_headers: bool = False
    num_refusals: int = 0
    pace: float = math.inf
    """Units a second that are let through now; infinite while nothing limits them."""
    _slack_s: float = _LATENESS_S
    _next: float = -math.inf  # when the next request is due
    _link: Link = field(default_factory=Link)
    _chain: Chain = field(default_factory=Chain)
    _probe: Probe = field(default_factory=Probe)
    _short_of: float = _SHORT_OF
    _closed_s: float = 0.0  # current wait for a provider that has closed
    _header_limit: float = math.inf
    _num_contradictions: int = 0
    _contradicted_at: float = -math.inf

    def __post_init__(self) -> None:
        self.pace = self.cap
        self._chain.off_by = _OFF_BY_ESTIMATED if self.estimated else _OFF_BY

    def reason(self) -> str:
        """Return the pace and how it is known, for people."""
        if self.pace >= self.cap:
            return f"runtime.max_{self.units}_per_minute is {self.cap * 60:.4g}"
        if self.rate == math.inf:
            return f"trying again every {self._closed_s:.2g} s: none of the {self.units} were accepted yet"
        refusals = "1 refusal" if self.num_refusals == 1 else f"{self.num_refusals} refusals"
        learnt = f"learnt from {refusals}" if self.num_refusals else "from an earlier run"
        return f"{self.rate * 60:.4g} {self.units}/min {'from headers' if self.from_headers else learnt}"

    def set_cap(self, cap: float) -> None:
        self.cap = cap
        self._set_pace(self._short_of * self.rate, 0.0)

    def wait_s(self, now: float) -> float:
        """Return the seconds until the next request may go; 0 or less for now."""
        return self._next - self._slack_s - now

    def take(self, amount: float, now: float) -> None:
        link = self._link
        if link.since == -math.inf:
            link.since = now
        link.taken += amount
        link.sends += 1
        if self.pace != math.inf:
            if self._next != -math.inf:
                link.idle_s += max(now - self._next, 0.0)
            self._next = max(self._next, now) + amount / self.pace
        if self.rate != math.inf and not self.from_headers and self._probe.is_due(link, now):
            if self._probe.climb(link, self.pace, now):
                self._raise()
                self._link = Link(now)
                self._probe.restart(self._link, now, self._chain.sureness)
                self._chain.clear()
            self._set_pace(self._short_of * self.rate * (1.0 + self._probe.step), now)

    def correct(self, amount: float, sent_at: float) -> None:
        """Count `amount` units that a request had beyond its estimate."""
        if sent_at >= self._link.since:
            self._link.taken += amount
        if self.pace != math.inf:
            self._next += amount / self.pace

    def forgive(self, amount: float, sent_at: float) -> None:
        """Let a refused request count for nothing."""
        if sent_at >= self._link.since:
            self._link.taken -= amount
            self._link.sends -= 1

    def pause(self, wait_s: float) -> None:
        """Let `wait_s`, for which another limit blocks all requests, not count as elapsed."""
        self._link.since += max(0.0, wait_s - _GATE_FREE_S)

    def set_from_headers(
        self, limit: float, remaining: float | None, sent_since: float, sent_at: float, now: float
    ) -> None:
        """Take the limit that an answer's headers state.

        `limit` is in units a second; `remaining` units were left when the request of `sent_at` was served, and
        `sent_since` units were sent after it.
        """
        if limit != self._header_limit:
            self._header_limit, self._num_contradictions = limit, 0
            self.rate, self.from_headers = limit, True
            self._set_pace(_SHORT_OF_TOLD * limit, now)
        if not self.from_headers or remaining is None:
            return
        left = remaining - sent_since + limit * (now - sent_at)
        if left < 1.0:
            self._delay_until(now + (1.0 - left) / limit)
        self._slack_s = min(max(0.5 * (left - 1.0) / limit, _slack_s(self.rate)), _MAX_SLACK_S)

    def refuse(self, amount: float, since: Since, sent_at: float, now: float, gate_s: float) -> None:
        """Learn from a request of `amount` units that this limit refused, the first of its episode."""
        self.num_refusals += 1
        self.forgive(amount, sent_at)
        self._slack_s = _slack_s(self.rate)
        if self.from_headers:
            is_recent = now - self._contradicted_at < _DISTRUST_S
            self._num_contradictions = self._num_contradictions + 1 if is_recent else 1
            self._contradicted_at = now
            self.from_headers = self._num_contradictions < _DISTRUST
        if self.from_headers:
            self._delay_until(sent_at + _CLEARLY * amount / self.rate)
            return
        link = self._link
        ended = Link(link.since, link.taken - since.amount, link.sends - since.sends, link.idle_s)
        elapsed_s = ended.elapsed_s(sent_at)
        some = ended.taken >= 0.5 * amount
        if some and self.rate == math.inf:
            full_s = min(elapsed_s, _BUCKET_S) if self.estimated and gate_s >= _COSTLY_S else 0.0
            self.rate = ended.taken / max(elapsed_s + full_s, 1.0)
        elif some and elapsed_s >= _MIN_LINK * (now - sent_at):
            self._learn(ended, elapsed_s, amount)
        else:
            self._close(amount, now)
            return
        self._begin(since, sent_at, now, amount, gate_s)

    def count_refusal(self) -> None:
        """Count one more refusal of the same episode."""
        self.num_refusals += 1
        self._probe.hold_longer(self._chain.sureness)

    def remember(self, rate: float) -> None:
        """Start from a rate that an earlier process learnt; it is probed soon."""
        self.rate = rate
        self._probe.hold_briefly()
        self._slack_s = _slack_s(rate)
        self._set_pace(self._short_of * rate, 0.0)

    def forget(self) -> None:
        """Forget the rate: the refusals were about another limit."""
        self.rate = math.inf
        self._chain.clear()
        self._set_pace(math.inf, 0.0)

    def _learn(self, link: Link, elapsed_s: float, amount: float) -> None:
        sureness = self._chain.sureness
        if self._probe.step == 0.0 and sureness == 1.0:
            self._short_of = max(self._short_of - _SHORT_OF_STEP, _LEAST_SHORT_OF)
        else:
            self._short_of = min(self._short_of + _SHORT_OF_STEP / 5, _SHORT_OF)
        if self._probe.refused(link, elapsed_s, self.rate, sureness):
            self._raise()
            self._chain.clear()
            return
        rate = self._chain.add(link, elapsed_s, amount)
        self.rate = max((1.0 + self._probe.creep(self.rate, amount)) * rate, self.rate / _LARGEST_FALL)

    def _raise(self) -> None:
        self.rate *= 1.0 + _RAISE * self._probe.step

    def _begin(self, since: Since, sent_at: float, now: float, amount: float, gate_s: float) -> None:
        self._link = Link(sent_at, since.amount, since.sends)
        self._closed_s = 0.0
        self._probe.hold(now, self._chain.sureness, gate_s)
        self._set_pace(self._short_of * self.rate, now)
        clearly = _CLEARLY_ESTIMATED if self.estimated else _CLEARLY
        resumes_at = max(now + gate_s, sent_at + (clearly * amount + since.amount) / self.rate)
        self._next = resumes_at + self._slack_s

    def _close(self, amount: float, now: float) -> None:
        """Back off from a provider that accepts nothing for a while."""
        spacing_s = _FIRST_CLOSED_S if self.rate == math.inf else _CLEARLY * amount / self.rate
        self._closed_s = min(max(2.0 * self._closed_s, spacing_s), _MAX_CLOSED_S)
        self._next = now + self._closed_s + self._slack_s

    def _delay_until(self, at: float) -> None:
        self._next = max(self._next, at + self._slack_s)

    def _set_pace(self, pace: float, now: float) -> None:
        self.pace = min(pace, self.cap)
        if self._next == -math.inf:
            self._next = now
