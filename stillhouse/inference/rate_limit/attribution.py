"""The likely reason of a refusal that gives none, judged by what was accepted under the same conditions.

A limit in flight separates cleanly: what it refuses had at least as many in flight ahead as the limit, what it accepts
had fewer. A limit on a rate does not care: it refuses with few in flight what it accepted with many a moment ago.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

_CLEARLY_FEWER: Final = 0.75  # share of what was accepted below which a refusal cannot be about the number in flight
_OVERLAP: Final = 3  # requests accepted at the limit after which a refusal below it speaks for a rate
_MIN_ACCEPTED: Final = 5
"""Requests accepted between two refusals for the second to say anything about the number in flight."""
_MAX_LEAN: Final = 3  # evidence that counts; more would make it slow to change its mind
_REMEMBERED: Final = 4
_MAX_SPREAD: Final = 0.2
"""Share by which the last refusals may differ in the number ahead and still be about one limit in flight."""
_RISEN: Final = 1.2  # times the highest of them above which a limit in flight has risen


@dataclass(slots=True)
class Attribution:
    """Evidence so far: a positive `lean` for a rate, else for the number in flight."""

    lean: int = 0
    _epoch: int = 0
    _num_accepted: int = 0
    _proven: int = 0
    _proven_before: int = 0
    _num_at_limit: int = 0
    _limit: int = 1
    _aheads: deque[int] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    def accept(self, ahead: int, epoch: int) -> None:
        """Note that a request with `ahead` others in flight before it was answered."""
        if ahead >= self._proven:
            self._proven = ahead + 1
        if epoch == self._epoch:
            self._num_accepted += 1
            if ahead >= self._limit - 1:
                self._num_at_limit += 1

    def refuse(self, ahead: int) -> bool:
        """Note a refusal with `ahead` others in flight before it; return whether that speaks for a rate."""
        proven = max(self._proven, self._proven_before)
        if self.lean < 0 and self._aheads and ahead > _RISEN * max(self._aheads):
            # A limit known to be one in flight was probed and has risen.
            self._aheads.clear()
        before = self._aheads[-1] if self._aheads else ahead
        self._aheads.append(ahead)
        spread = max(self._aheads) - min(self._aheads)
        if (
            (len(self._aheads) == _REMEMBERED and spread > max(2.0, _MAX_SPREAD * max(self._aheads)))
            or ahead < 1
            or ahead < _CLEARLY_FEWER * proven - 1
        ):
            self.lean = min(max(self.lean, 0) + 1, _MAX_LEAN)
        elif self._num_at_limit >= _OVERLAP and ahead < self._limit - max(1.0, 0.1 * self._limit):
            self.lean = min(self.lean + 1, _MAX_LEAN)
        elif (
            self._num_accepted >= _MIN_ACCEPTED
            and ahead >= self._proven
            and abs(ahead - before) <= max(1.0, 0.1 * ahead)
        ):
            self.lean = max(self.lean - 1, -_MAX_LEAN)
        return self.lean > 0

    def begin_epoch(self, epoch: int, limit: int) -> None:
        """Reset the counts after a cut to `limit` in flight."""
        self._epoch, self._limit = epoch, limit
        self._num_accepted = self._num_at_limit = 0
        self._proven_before, self._proven = self._proven, 0
