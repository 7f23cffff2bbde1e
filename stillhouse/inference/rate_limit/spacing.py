"""`Spacing`: a leaky bucket that lets `pace` units a second through, one request after the other.

Each request pushes the time of the next one back by its units over the pace. A request that comes late, because an
event loop or the window held it up, leaves the next on time, so that the pace is kept on average; time in which nothing
was asked for is lost, as it is in the provider's bucket once that is full.
"""

import math
from dataclasses import dataclass
from typing import Final

_LATENESS_S: Final = 0.05
"""How late a request may be and the next still be on time: a few turns of a busy event loop."""
_LATE_RATE: Final = 20.0
"""Units a second below which that is less in proportion, so that never more than one comes too early: a bucket of a
minute's sixtieth may hold just one request."""


@dataclass(slots=True)
class Spacing:
    """When the next request may go. Units are requests or tokens."""

    pace: float = math.inf
    """Units a second."""
    slack_s: float = _LATENESS_S
    """How late a request may be and the next still be on time."""
    _next: float = -math.inf

    @property
    def is_on(self) -> bool:
        """Whether it holds anything back."""
        return self.pace != math.inf

    def wait_s(self, now: float) -> float:
        """Seconds until the next request may go; 0 or less for now."""
        return self._next - self.slack_s - now

    def take(self, amount: float, now: float) -> float:
        """A request of `amount` units goes; seconds that nobody used before it."""
        if self.pace == math.inf:
            return 0.0
        idle_s = 0.0 if self._next == -math.inf else max(now - self._next, 0.0)
        self._next = max(self._next, now) + amount / self.pace
        return idle_s

    def correct(self, amount: float) -> None:
        """A request turned out `amount` units larger than was taken for it."""
        if self.pace != math.inf:
            self._next += amount / self.pace

    def set_pace(self, pace: float, now: float) -> None:
        """Lets so many units a second through from now on."""
        self.pace = pace
        if self._next == -math.inf:
            self._next = now

    def set_slack(self, rate: float) -> None:
        """No more slack than a bucket may bear that fills by `rate` units a second."""
        self.slack_s = slack_s(rate)

    def resume_at(self, at: float) -> None:
        """The next request goes at that time."""
        self._next = at + self.slack_s

    def delay_until(self, at: float) -> None:
        """The next request goes no earlier than that."""
        self._next = max(self._next, at + self.slack_s)


def slack_s(rate: float) -> float:
    """How late a request may be where a bucket fills by `rate` units a second."""
    return min(_LATENESS_S, _LATENESS_S * rate / _LATE_RATE)
