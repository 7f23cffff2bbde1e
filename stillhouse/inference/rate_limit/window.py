"""`Window`: how many requests may be in flight.

    event                               what it does
    success, full since it was sent     before the first cut limit + 3, from 256 on + 1: fourfold, twofold a round trip
    refused with n in flight ahead      limit = n, which is what the provider serves at once
    refused a probe, n near what held   limit = what held, or one more where more than that were ahead
    refused thrice within a round trip  limit = 0.9 n, then 0.8 n, 0.6 n, 0.5 n: what is served has fallen fast
    enough accepted since a cut         probes: +1, +2, +4 ... a step, until refused again
    three of the last ten failed        limit = 0.7 of what is in flight: overload
    5xx, reset, stall                   no growth until ten outcomes are clean

Slow start after TCP (RFC 5681), the saturation gate after Netflix concurrency-limits.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final

_SATURATED: Final = 0.8  # share of the window in use from which success tells that more may be served
_FAST_GROWTH: Final = 3
"""Fourfold a round trip: 256 from 20 in two. Doubling, 2,000 prompts without a limit took 7 % longer."""
_FAST_UP_TO: Final = 256
"""Beyond, what is sent while a refusal travels would be too much: it was 1.6 % of all that a large bucket was sent."""
_RECENT: Final = 10  # outcomes looked at for failures
_OVERLOAD: Final = 3  # failures among them that make an overload
_OVERLOAD_CUT: Final = 0.7  # share of what is in flight that is left then
_ACCEPTED_PER_REFUSAL: Final = 125  # accepted requests that pay for a refusal: 1 in 125 is 0.8 %
_STEP_REFUSALS: Final = 10.0
"""Round trips of a refusal between two steps of a probe, so that one is refused before the next is taken."""
_MIN_STEP_S: Final = 0.1
_MAX_STEP_S: Final = 0.5
_BURST_S: Final = 0.002  # requests sent within this may overtake each other
_NEAR: Final = 0.1
"""Share of the number held within which a refusal is about the last step, and beyond which the limit has moved."""
_SHARES: Final = (1.0, 1.0, 0.9, 0.8, 0.6)
"""Share of the number ahead that is left at each further cut within a round trip; a half after these."""


@dataclass(slots=True)
class Window:
    """The number in flight, and the most that may be."""

    limit: int
    cap: int
    in_flight: int = 0
    num_refusals: int = 0
    is_cut: bool = False
    """True if it was ever cut; slow start is over then."""
    _recent: deque[bool] = field(default_factory=lambda: deque(maxlen=_RECENT))
    _last_cut: float = -math.inf
    _full_at: float = -math.inf  # when the window was nearly full last
    _cuts_in_row: int = 0
    _sends: int = 0
    _hold_sends: int = 0
    _hold_each: int = 0
    _sure: bool = False
    _held: int = 0  # what it was cut to, before probes
    _refused_sent_at: float = -math.inf
    _step: int = 0
    _step_at: float = 0.0
    _step_s: float = _MAX_STEP_S

    def reason(self) -> str:
        """Return what sets the limit and how that is known, for people."""
        if self.limit >= self.cap:
            return f"runtime.max_concurrency is {self.cap}"
        if self.num_refusals:
            refusals = "1 refusal" if self.num_refusals == 1 else f"{self.num_refusals} refusals"
            return f"{self.limit} in flight learnt from {refusals}"
        if self._num_failed:
            return f"no growth: {self._num_failed} of the last {len(self._recent)} answers failed"
        return f"{self.limit} in flight from an earlier run" if self.is_cut else "growing: nothing refused yet"

    def set_cap(self, cap: int) -> None:
        self.cap = cap
        self.limit = min(self.limit, cap)

    def enter(self, now: float) -> None:
        self.in_flight += 1
        self._sends += 1
        if self.in_flight >= _SATURATED * self.limit:
            self._full_at = now
        if self.is_cut and self.in_flight >= self.limit and self._sends >= self._hold_sends and not self._num_failed:
            self._probe(now)

    def succeed(self, sent_at: float) -> None:
        self._recent.append(False)
        if self._full_at >= sent_at and not self.is_cut and not self._num_failed and self.limit < self.cap:
            self.limit = min(self.limit + (_FAST_GROWTH if self.limit < _FAST_UP_TO else 1), self.cap)

    def fail(self) -> bool:
        """Note that a request met a 5xx, a reset or a stall; return whether that makes an overload."""
        self._recent.append(True)
        return self._num_failed >= _OVERLOAD

    def refuse(self, ahead: int, sent_at: float, now: float, round_s: float, *, sure: bool) -> None:
        """Cut by a request that was refused with `ahead` others in flight before it, the first of its episode."""
        self.num_refusals += 1
        self._step_s = min(max(_STEP_REFUSALS * (now - sent_at), _MIN_STEP_S), _MAX_STEP_S)
        self._refused_sent_at = sent_at
        self._cuts_in_row = self._cuts_in_row + 1 if now - self._last_cut < round_s else 0
        share = _SHARES[self._cuts_in_row] if self._cuts_in_row < len(_SHARES) else 0.5
        self._cut(int(self._served(ahead) * share), now)
        self._sure = sure
        self._hold_each = _ACCEPTED_PER_REFUSAL if sure else 2
        self._hold_sends = max(self._hold_each, 2 * self.limit)

    def _served(self, ahead: int) -> int:
        """Return how many are served at once, by a refusal with `ahead` in flight before it.

        Requests sent at about the same time overtake each other, so near the number held it shows only that the last
        step went too far: from a probe back to the number held, from there one less.
        """
        held = self._held
        if not self.is_cut or abs(ahead - held) > max(1.0, _NEAR * held):
            return ahead
        if self.limit == held:
            return held - 1
        return min(max(ahead, held), held + 1)

    def count_refusal(self, sent_at: float) -> None:
        """Count one more refusal of the same episode."""
        self.num_refusals += 1
        if self._sure and self._cuts_in_row < 2 and abs(sent_at - self._refused_sent_at) < _BURST_S:
            # Of requests sent at once any may come first; how many of them stay in flight is what is served.
            self.limit = self._held = max(1, self.in_flight)
        self._hold_sends += self._hold_each

    def overload(self, now: float) -> None:
        """Cut, as too many of the last requests failed."""
        was_cut = self.is_cut
        self._cut(int(self.in_flight * _OVERLOAD_CUT), now)
        # How many are served at once is still unknown: growth goes on as before once answers are clean.
        self.is_cut = was_cut
        self._hold_sends = self.limit
        self._recent.clear()

    def restore(self, limit: int) -> None:
        """Undo a cut: the refusal was about another limit."""
        self.limit = max(self.limit, min(limit, self.cap))
        self.is_cut = False

    def remember(self, limit: int) -> None:
        """Start from a limit that an earlier process learnt; it is probed soon."""
        self._cut(limit, -math.inf)
        self._hold_sends = self.limit

    def _cut(self, limit: int, now: float) -> None:
        self.limit = self._held = max(1, min(limit, self.cap))
        self.is_cut = True
        self._last_cut = now
        self._sends = 0
        self._step = 0
        self._step_at = now

    def _probe(self, now: float) -> None:
        if now - self._step_at < self._step_s or self.limit >= self.cap:
            return
        self._step = 2 * self._step or 1
        self._step_at = now
        self.limit = min(self.limit + self._step, self.cap)

    @property
    def _num_failed(self) -> int:
        return sum(self._recent)
