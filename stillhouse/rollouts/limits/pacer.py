"""`Pacer`: one rate that must not be exceeded, of requests or of tokens, told by headers or learnt from refusals.

A provider keeps a bucket that is empty whenever it refuses. What it accepted from one refusal to the next, over the
time between them, is therefore its rate, however large the bucket; over a chain of refusals the error is one request in
all that were accepted. So the pacer needs no model of the bucket:

    event                              what it does
    first refusal                      rate = accepted since the start / time, no less than a second
    refusal after some were accepted   rate = accepted / time since the refusal before, added to the chain; a chain
                                       that contradicts the latest link by more than its error is begun anew
    refusal after none was accepted    the provider is closed (a fixed window, a far lower limit): waits twice as long
    enough accepted since a refusal    probes: 4, 12, 28, 60, 124 % above the rate, until refused again;
                                       what is accepted all the same is the rate from now on
    headers                            rate = what they tell, no probes; refusals all the same make it learn by itself

Probes are paid for: a refusal must be followed by so many accepted requests that refusals stay below one in a hundred.
"""

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

# The pace held, as a share of a rate that was learnt; less where sizes vary more than the bucket can bear.
_SHORT_OF: Final = 0.98
_LEAST_SHORT_OF: Final = 0.95
_SHORT_OF_TOLD: Final = 0.99
# How late a request may be and the next still be on time; in proportion less below that rate (units a second).
_TOLERANCE_S: Final = 0.05
_TOLERANT_RATE: Final = 20.0
# What a bucket is taken to hold until it is seen to hold more, and the most that is believed.
_BURST_S: Final = 1.0
_MAX_BURST_S: Final = 60.0
# 1/125 is 0.8 %. Before a chain of so many requests is behind a rate it is better to learn than to save.
_ACCEPTED_PER_REFUSAL: Final = 125
_SURE_AFTER: Final = 40
_MIN_HOLD: Final = 8
_MIN_HOLD_S: Final = 8.0
# A refusal that shuts the gate may cost a thirtieth of the time.
_GATE_SHARE: Final = 30.0
# Probes: doubled and 4 % more each step, up to 124 %; up to 28 % where the bucket is large.
_FIRST_STEP: Final = 0.04
_SHORT_STEP: Final = 0.28
_LAST_STEP: Final = 1.24
_STEP_S: Final = 0.5
_STEP_SENDS: Final = 8
_USED: Final = 0.85
_SETTLED_S: Final = 20.0
_CREEP: Final = 0.05
_MARGIN: Final = 1.05
_FIRST_CLOSED_S: Final = 0.1
_MAX_CLOSED_S: Final = 8.0
# A link shorter than so many round trips of a refusal says more of the requests under way than of the rate.
_MIN_LINK: Final = 4.0
_FORGET_S: Final = 300.0
# So many refusals within a minute, against what headers tell, and headers are believed no more.
_DISTRUST: Final = 3
_DISTRUST_S: Final = 60.0


class Since(NamedTuple):
    """What was sent after a request."""

    amount: float
    """Units."""
    sends: int


@dataclass(slots=True)
class Pacer:
    """Spaces what is sent. Units are requests or tokens, rates are units a second."""

    cap: float = math.inf
    """What the user allows at most."""
    sizes_off_by: float = 2.0
    """Requests by which the count of what was accepted may be wrong; more where their sizes are estimates."""
    rate: float = math.inf
    """The limit as far as it is known."""
    told: bool = False
    """Whether headers told it."""
    num_refusals: int = 0
    _pace: float = math.inf
    _next: float = -math.inf
    _tolerance_s: float = _TOLERANCE_S
    _anchor: float = -math.inf
    _taken: float = 0.0
    """Units accepted or under way since the anchor, the sending of the last refused request."""
    _sends: int = 0
    _idle_s: float = 0.0
    """Time since the anchor in which the pace was not used."""
    _burst_s: float = _BURST_S
    _chain_taken: float = 0.0
    _chain_s: float = 0.0
    _chain_sends: int = 0
    _error: float = 0.0
    _closed_s: float = 0.0
    _hold_until: float = 0.0
    _hold_sends: float = 0.0
    _step: float = 0.0
    _step_at: float = 0.0
    _step_sends: int = 0
    _step_taken: float = 0.0
    _told_limit: float = math.inf
    _num_contradictions: int = 0
    _contradicted_at: float = -math.inf
    _risen_by_s: float = 0.0
    _short_of: float = _SHORT_OF

    def __post_init__(self) -> None:
        self._pace = min(self.rate, self.cap)

    @property
    def pace(self) -> float:
        """Units a second that are let through now."""
        return self._pace

    @property
    def is_set(self) -> bool:
        """Whether it holds anything back."""
        return self._pace != math.inf

    def reason(self, units: str, cap_name: str) -> str:
        """The pace in words, and how it is known."""
        if self._pace >= self.cap:
            return f"{cap_name} is {self.cap * 60:.4g}"
        if self.told:
            return f"{self.rate * 60:.4g} {units}/min from headers"
        if self.rate == math.inf:
            return f"trying again every {self._closed_s:.2g} s: none of the {units} were accepted yet"
        if not self.num_refusals:
            return f"{self.rate * 60:.4g} {units}/min from an earlier run"
        refusals = "1 refusal" if self.num_refusals == 1 else f"{self.num_refusals} refusals"
        return f"{self.rate * 60:.4g} {units}/min learnt from {refusals}"

    def set_cap(self, cap: float) -> None:
        """Sets what the user allows at most."""
        self.cap = cap
        self._set_pace(self._short_of * self.rate, 0.0)

    def wait_s(self, now: float) -> float:
        """Seconds until the next request may go; 0 or less for now."""
        return self._next - self._tolerance_s - now

    def take(self, amount: float, now: float) -> None:
        """A request of `amount` units is sent."""
        if self._anchor == -math.inf:
            self._anchor = now
        self._taken += amount
        self._sends += 1
        if self._pace != math.inf:
            if now > self._next:
                self._idle_s += now - self._next
                self._next = now
            self._next += amount / self._pace
            if not self.told and self._sends >= self._hold_sends:
                self._probe(now)

    def correct(self, amount: float, sent_at: float) -> None:
        """A request turned out `amount` units larger than was taken for it."""
        if sent_at >= self._anchor:
            self._taken += amount
        if self._pace != math.inf:
            self._next += amount / self._pace

    def tell(self, limit: float, remaining: float | None, sent_since: float, sent_at: float, now: float) -> None:
        """Headers of an answer: `limit` units a second, of which `remaining` were left.

        Args:
            limit: units a second.
            remaining: units left when the request was served; None where it is not said.
            sent_since: units sent after that request.
            sent_at: when that request was sent.
            now: seconds.
        """
        if limit != self._told_limit:
            self._told_limit, self._num_contradictions = limit, 0
            self.rate, self.told = limit, True
            self._set_pace(_SHORT_OF_TOLD * limit, now)
        if not self.told:
            return
        if remaining is None:
            return
        left = remaining - sent_since + limit * (now - sent_at)
        if left < 1.0:
            self._next = max(self._next, now + (1.0 - left) / limit + self._tolerance_s)
        self._tolerance_s = min(max(0.5 * (left - 1.0) / limit, self._lateness_s), _BURST_S)

    def refuse(self, amount: float, since: "Since", sent_at: float, now: float, gate_s: float) -> None:
        """A request was refused because of this limit, the first of its episode.

        Args:
            amount: its units.
            since: what was sent after it.
            sent_at: when it was sent.
            now: seconds.
            gate_s: how long the provider asked to wait.
        """
        self.num_refusals += 1
        self.forgive(amount, sent_at)
        self._taken -= since.amount
        self._sends -= since.sends
        self._tolerance_s = self._lateness_s
        elapsed = sent_at - self._anchor
        elapsed = max(elapsed - self._idle_s, 0.5 * elapsed, 1e-6)
        if self.told:
            recent = now - self._contradicted_at < _DISTRUST_S
            self._num_contradictions = self._num_contradictions + 1 if recent else 1
            self._contradicted_at = now
            self.told = self._num_contradictions < _DISTRUST
        if self.told:
            self._next = max(self._next, sent_at + _MARGIN * amount / self.rate + self._tolerance_s)
        elif self.rate == math.inf and self._taken >= 0.5 * amount:
            self.rate = self._taken / max(elapsed, 1.0)
            self._begin(since, sent_at, now, amount, gate_s)
        elif self._taken < 0.5 * amount or elapsed < _MIN_LINK * (now - sent_at):
            self._taken += since.amount
            self._sends += since.sends
            self._close(amount, now)
        else:
            self._learn(amount, elapsed)
            self._begin(since, sent_at, now, amount, gate_s)

    def forgive(self, amount: float, sent_at: float) -> None:
        """A refused request counts for nothing."""
        if sent_at >= self._anchor:
            self._taken -= amount
            self._sends -= 1

    def pause(self, wait_s: float) -> None:
        """Nothing may be sent for so long, for reasons that are not this limit's: the time counts for nothing."""
        self._anchor += max(0.0, wait_s - _BURST_S)

    def count_refusal(self) -> None:
        """One more request of the same episode was refused."""
        self.num_refusals += 1
        self._hold_sends += _ACCEPTED_PER_REFUSAL * self._sureness

    def remember(self, rate: float) -> None:
        """Starts from a rate that an earlier process learnt; it is probed soon."""
        self.rate = rate
        self._hold_sends = _MIN_HOLD
        self._step_at = math.inf
        self._tolerance_s = self._lateness_s
        self._set_pace(self._short_of * rate, 0.0)

    def forget(self) -> None:
        """What was taken for this limit was another."""
        self.rate, self._chain_s, self._chain_taken, self._chain_sends = math.inf, 0.0, 0.0, 0
        self._set_pace(math.inf, 0.0)

    def _learn(self, amount: float, elapsed: float) -> None:
        # Refused although nothing was probed: sizes vary more than the bucket can bear.
        unprovoked = self._step == 0.0 and self._sureness == 1.0
        self._short_of = (
            max(self._short_of - 0.005, _LEAST_SHORT_OF) if unprovoked else min(self._short_of + 0.001, _SHORT_OF)
        )
        excess_s = self._taken / self.rate - elapsed
        if self._step > 0.3 and excess_s > 1.25 * self._burst_s:
            # More was accepted than any bucket would have held: the limit has risen to about where probes were.
            self._rise(excess_s)
            return
        if self._risen_by_s and self._taken < 0.7 * self.rate * elapsed:
            # It had not: the bucket is as large as that.
            self._burst_s = min(self._risen_by_s, _MAX_BURST_S)
            self._risen_by_s = 0.0
        elif elapsed > _SETTLED_S:
            self._risen_by_s = 0.0
        if self._chain_s:
            # Small errors of one sign add up, so that a series of short links contradicts as well as a long one.
            self._error = 0.7 * self._error + self._taken - self._chain_taken / self._chain_s * elapsed
            if abs(self._error) > self.sizes_off_by * amount + 0.1 * self._taken:
                self._chain_taken = self._chain_s = self._chain_sends = 0
                self._error = 0.0
        self._chain_taken += self._taken
        self._chain_s += elapsed
        self._chain_sends += self._sends
        if self._chain_s > _FORGET_S:
            self._chain_taken, self._chain_s = self._chain_taken / 2, self._chain_s / 2
        # A bucket of one overflows while the pace is short of the limit, so a rate below an accepted step is raised.
        creep = min(max(0.5 * (self._step - _FIRST_STEP), 0.0), _SHORT_STEP) * (
            _CREEP if self.rate > 2.0 * amount else 1.0
        )
        self.rate = max((1.0 + creep) * (self._chain_taken + 0.5 * amount) / self._chain_s, self.rate / 4.0)

    @property
    def _lateness_s(self) -> float:
        """How late a request may be and the next still be on time; next to nothing where a bucket may hold just one."""
        return min(_TOLERANCE_S, _TOLERANCE_S * self.rate / _TOLERANT_RATE)

    @property
    def _sureness(self) -> float:
        return min(1.0, self._chain_sends / _SURE_AFTER)

    def _rise(self, excess_s: float) -> None:
        """Far more was accepted than the known rate allows: what was learnt of it is of no use any more."""
        self._risen_by_s = excess_s if self._sureness == 1.0 else 0.0
        self.rate *= 1.0 + 0.75 * self._step
        self._step = _FIRST_STEP
        self._chain_taken = self._chain_s = self._error = 0.0
        self._chain_sends = 0

    def _begin(self, since: "Since", sent_at: float, now: float, amount: float, gate_s: float) -> None:
        """A new link of the chain begins at a refusal."""
        self._anchor, self._taken, self._sends, self._idle_s = sent_at, since.amount, since.sends, 0.0
        self._closed_s = 0.0
        self._step = 0.0
        self._step_at = math.inf
        sureness = self._sureness
        self._hold_sends = max(_MIN_HOLD, _ACCEPTED_PER_REFUSAL * sureness)
        self._hold_until = now + max(_MIN_HOLD_S * sureness, _GATE_SHARE * gate_s)
        self._set_pace(self._short_of * self.rate, now)
        self._next = max(now + gate_s, sent_at + (_MARGIN * amount + since.amount) / self.rate) + self._tolerance_s

    def _close(self, amount: float, now: float) -> None:
        spacing_s = _FIRST_CLOSED_S if self.rate == math.inf else _MARGIN * amount / self.rate
        self._closed_s = min(max(2.0 * self._closed_s, spacing_s), _MAX_CLOSED_S)
        self._next = now + self._closed_s + self._tolerance_s

    def _probe(self, now: float) -> None:
        """Goes above the rate, step by step; each step counts only if its pace was used."""
        if now < self._hold_until:
            return
        if self._step_at == math.inf:
            self._step_at, self._step_sends, self._step_taken = now, self._sends, self._taken
            self._step = _FIRST_STEP
        elif now - self._step_at >= _STEP_S and self._sends - self._step_sends >= _STEP_SENDS:
            used = self._taken - self._step_taken >= _USED * self._pace * (now - self._step_at)
            # Where a bucket is large, probing tells nothing until it is empty.
            most = _LAST_STEP if self._burst_s <= 2.0 * _BURST_S else _SHORT_STEP
            if used and self._step < most:
                self._step = min(2.0 * self._step + _FIRST_STEP, most)
            elif used and now - self._step_at < 2.0 * self._burst_s:
                return
            elif used:
                self._rise(_MAX_BURST_S)
                self._anchor, self._taken, self._sends, self._idle_s = now, 0.0, 0, 0.0
                self._hold_sends = _MIN_HOLD
            self._step_at, self._step_sends, self._step_taken = now, self._sends, self._taken
        self._set_pace(self._short_of * self.rate * (1.0 + self._step), now)

    def _set_pace(self, pace: float, now: float) -> None:
        self._pace = min(pace, self.cap)
        if self._next == -math.inf:
            self._next = now
