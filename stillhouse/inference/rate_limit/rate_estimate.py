"""A rate learnt from refusals (`Chain`), and how far above it to try (`Probe`).

A provider keeps a bucket that is empty whenever it refuses. What it accepted from one refusal to the next, a link, over
the time between them is therefore its rate, however large the bucket; over a chain of links the error is one request in
all that were accepted. The size of the bucket need not be known.

    event                              what a probe does
    refusal                            holds for 125 accepted requests, fewer while little is known of the rate
    held long enough                   4 % above the rate, then 12, 28, 60, 124 %: a step counts if its pace was used
    the last step used for long        the limit has risen, as no bucket would have held that much

A refusal is paid for by accepted requests, which keeps refusals below one in a hundred. A bucket larger than a few
seconds is only seen to be one when it is empty, so there the steps end at 28 % and take as long as it may last.
"""

import math
from dataclasses import dataclass
from typing import Final

_SURE_AFTER: Final = 40
"""Accepted requests after which the error of a chain, one request, is below the 2.5 % that matter."""
_FORGET_S: Final = 300.0  # length at which a chain is halved, so that it follows a limit that drifts within minutes
_FADING: Final = 0.7
"""Weight of errors so far at each link: a series of short links contradicts as well as a long one."""
_RATE_OFF_BY: Final = 0.1  # share of a link within which an error is noise: beyond it a chain starts over
_ACCEPTED_PER_REFUSAL: Final = 125  # 1 in 125 is 0.8 %
_MIN_HOLD: Final = 8
"""Accepted requests to hold for in any case. While a rate is unsure it is better to learn than to save."""
_MIN_HOLD_S: Final = 8.0  # seconds to hold for when the rate is sure
_GATE_SHARE: Final = 30.0
"""Times the wait that a refusal brought to hold for: waiting then costs a thirtieth of the time at most."""
_FIRST_STEP: Final = 0.04
"""Each step is twice the one before and this: a doubled limit is reached in five, and the first is well above noise."""
_LARGE_BUCKET_STEP: Final = 0.28  # the last step where the bucket is known to be large
_LAST_STEP: Final = 1.24  # the last step elsewhere: above a doubled limit, so that one is met within a few seconds
# Least length of a step in seconds and requests, so that it is refused before the next.
_STEP_S: Final = 0.5
_STEP_SENDS: Final = 8
_USED: Final = 0.85  # share of the pace that must have been used for a step to count: other limits may bind
_BURST_S: Final = 1.0  # assumed size of a bucket until it is seen to be larger, in seconds' worth of the rate
_MAX_BURST_S: Final = 60.0  # largest bucket assumed: a minute's worth
_RISEN: Final = 1.25  # buckets by which more must have been accepted than the rate allows for the limit to have risen
_NOT_RISEN: Final = 0.7  # share of a raised rate that shows, when it is all there is, that the limit had not risen
_SETTLED_S: Final = 20.0  # a raised rate is confirmed after this time
_CREEP: Final = 0.05
"""Share of half the refused step by which the rate learnt is raised: a small bucket overflows while the pace is short
of the limit, so that the chain falls short as well."""
_CREEP_SLOW: Final = 2.0
"""Requests a second below which half the step is added in full, as a bucket may well hold just one."""


@dataclass(slots=True)
class Link:
    """Requests accepted or in flight since a refusal, or since the first request."""

    since: float = -math.inf
    """When the refused request was sent."""
    taken: float = 0.0
    sends: int = 0
    idle_s: float = 0.0
    """Time in which the pace would have allowed a request and there was none."""

    def elapsed_s(self, at: float) -> float:
        """Return the seconds in use until then; at least half of all, as the bucket fills in idle time."""
        elapsed = at - self.since
        return max(elapsed - self.idle_s, 0.5 * elapsed, 1e-6)


@dataclass(slots=True)
class Chain:
    off_by: float = 2.0
    """Requests by which the count of what was accepted may be wrong."""
    _taken: float = 0.0
    _elapsed_s: float = 0.0
    _sends: int = 0
    _error: float = 0.0  # units accepted beyond the chain's prediction, recently

    @property
    def sureness(self) -> float:
        """Return the confidence in the rate, from 0 (unknown) to 1."""
        return min(1.0, self._sends / _SURE_AFTER)

    def add(self, link: Link, elapsed_s: float, amount: float) -> float:
        """Add a link ended by the refusal of a request of `amount` units; return the rate of all links."""
        if self._elapsed_s:
            self._error = _FADING * self._error + link.taken - self._taken / self._elapsed_s * elapsed_s
            if abs(self._error) > self.off_by * amount + _RATE_OFF_BY * link.taken:
                self.clear()
        self._taken += link.taken
        self._elapsed_s += elapsed_s
        self._sends += link.sends
        if self._elapsed_s > _FORGET_S:
            self._taken, self._elapsed_s = self._taken / 2, self._elapsed_s / 2
        # Half of the refused request: the bucket held between nothing and just too little for it.
        return (self._taken + 0.5 * amount) / self._elapsed_s

    def clear(self) -> None:
        self._taken = self._elapsed_s = self._error = 0.0
        self._sends = 0


@dataclass(slots=True)
class Probe:
    """The share above a rate that is tried now."""

    step: float = 0.0
    _hold_until: float = 0.0
    _hold_sends: float = 0.0  # requests of the link to wait for
    _begun: bool = False  # whether the hold is over
    # When the step began, and what the link held then.
    _at: float = 0.0
    _sends: int = 0
    _taken: float = 0.0
    _burst_s: float = _BURST_S
    _risen_by_s: float = 0.0
    """Seconds' worth accepted beyond the rate when it was last raised; 0 once that is confirmed."""

    def hold(self, now: float, sureness: float, gate_s: float) -> None:
        """Start over after a refusal with a Retry-After of `gate_s`."""
        self.step, self._begun = 0.0, False
        self._hold_sends = max(_MIN_HOLD, _ACCEPTED_PER_REFUSAL * sureness)
        self._hold_until = now + max(_MIN_HOLD_S * sureness, _GATE_SHARE * gate_s)

    def hold_briefly(self) -> None:
        """Start over soon: the rate is an old one."""
        self.step, self._begun, self._hold_sends = 0.0, False, _MIN_HOLD

    def hold_longer(self, sureness: float) -> None:
        """Count one more refusal of the same episode."""
        self._hold_sends += _ACCEPTED_PER_REFUSAL * sureness

    def is_due(self, link: Link, now: float) -> bool:
        """Return whether enough was accepted since the refusal that began the link."""
        return link.sends >= self._hold_sends and now >= self._hold_until

    def climb(self, link: Link, pace: float, now: float) -> bool:
        """Go up once a step is over; return whether the last was used so long that the limit must have risen."""
        if not self._begun:
            self._begun, self.step = True, _FIRST_STEP
            self._mark(link, now)
            return False
        elapsed_s = now - self._at
        if elapsed_s < _STEP_S or link.sends - self._sends < _STEP_SENDS:
            return False
        if link.taken - self._taken >= _USED * pace * elapsed_s:
            most = _LAST_STEP if self._burst_s <= 2.0 * _BURST_S else _LARGE_BUCKET_STEP
            if self.step >= most:
                return elapsed_s >= 2.0 * self._burst_s
            self.step = min(2.0 * self.step + _FIRST_STEP, most)
        self._mark(link, now)
        return False

    def refused(self, link: Link, elapsed_s: float, rate: float, sureness: float) -> bool:
        """End the link by a refusal; return whether the limit has risen: more was accepted than any bucket holds."""
        excess_s = link.taken / rate - elapsed_s
        if self.step > _LARGE_BUCKET_STEP and excess_s > _RISEN * self._burst_s:
            self._doubt(excess_s, sureness)
            return True
        if self._risen_by_s and link.taken < _NOT_RISEN * rate * elapsed_s:
            self._burst_s = min(self._risen_by_s, _MAX_BURST_S)
            self._risen_by_s = 0.0
        elif elapsed_s > _SETTLED_S:
            self._risen_by_s = 0.0
        return False

    def restart(self, link: Link, now: float, sureness: float) -> None:
        """Go on from this step, to which the rate was raised without a refusal, with a link that is new."""
        self._doubt(_MAX_BURST_S, sureness)
        self.step, self._hold_sends = _FIRST_STEP, _MIN_HOLD
        self._mark(link, now)

    def creep(self, rate: float, amount: float) -> float:
        """Return the share to add to a rate that a refusal at this step taught."""
        tried = min(max(0.5 * (self.step - _FIRST_STEP), 0.0), _LARGE_BUCKET_STEP)
        return tried * (_CREEP if rate > _CREEP_SLOW * amount else 1.0)

    def _doubt(self, excess_s: float, sureness: float) -> None:
        # What was accepted beyond a rate that was a first guess says nothing of the bucket.
        self._risen_by_s = excess_s if sureness == 1.0 else 0.0

    def _mark(self, link: Link, now: float) -> None:
        self._at, self._sends, self._taken = now, link.sends, link.taken
