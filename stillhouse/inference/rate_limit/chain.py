"""`Chain`: a rate from what was accepted between refusals.

A provider keeps a bucket that is empty whenever it refuses. What it accepted from one refusal to the next, a link, over
the time between them is therefore its rate, however large the bucket; over a chain of links the error is one request in
all that were accepted. So nothing needs to be known of the bucket.
"""

import math
from dataclasses import dataclass
from typing import Final

_SURE_AFTER: Final = 40
"""Accepted requests after which the error of a chain, one request, is below the 2.5 % that matter."""
_FORGET_S: Final = 300.0
"""Length at which a chain is halved, so that it follows a limit that drifts within minutes."""
_FADING: Final = 0.7
"""Weight of errors so far at each link: a series of short links contradicts as well as a long one."""
_RATE_OFF_BY: Final = 0.1
"""Share of a link by which it may be off and be noise: short of it a chain adapts, beyond it begins anew."""


@dataclass(slots=True)
class Link:
    """What was accepted, or is under way, since a refusal, or since the first request."""

    since: float = -math.inf
    """When the refused request was sent."""
    taken: float = 0.0
    """Units."""
    sends: int = 0
    idle_s: float = 0.0
    """Time in which nobody asked for what the pace would have allowed."""

    def elapsed_s(self, at: float) -> float:
        """Seconds of use until then. Idle time counts half at least: the bucket has filled meanwhile."""
        elapsed = at - self.since
        return max(elapsed - self.idle_s, 0.5 * elapsed, 1e-6)


@dataclass(slots=True)
class Chain:
    """Links that agree with each other."""

    off_by: float = 2.0
    """Requests by which the count of what was accepted may be wrong."""
    _taken: float = 0.0
    _elapsed_s: float = 0.0
    _sends: int = 0
    _error: float = 0.0
    """Units accepted beyond what the chain foretold, of late."""

    @property
    def sureness(self) -> float:
        """From 0, nothing is known, to 1, the rate is known as well as need be."""
        return min(1.0, self._sends / _SURE_AFTER)

    def add(self, link: Link, elapsed_s: float, amount: float) -> float:
        """Adds a link that ended in the refusal of a request of `amount` units; the rate by the whole chain."""
        if self._elapsed_s:
            self._error = _FADING * self._error + link.taken - self._taken / self._elapsed_s * elapsed_s
            if abs(self._error) > self.off_by * amount + _RATE_OFF_BY * link.taken:
                self.clear()
        self._taken += link.taken
        self._elapsed_s += elapsed_s
        self._sends += link.sends
        if self._elapsed_s > _FORGET_S:
            self._taken, self._elapsed_s = self._taken / 2, self._elapsed_s / 2
        # Half of the refused request: what the bucket held then is between nothing and just too little for it.
        return (self._taken + 0.5 * amount) / self._elapsed_s

    def clear(self) -> None:
        """Begins anew."""
        self._taken = self._elapsed_s = self._error = 0.0
        self._sends = 0
