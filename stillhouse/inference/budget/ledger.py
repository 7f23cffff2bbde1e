"""What requests cost (`Spend`), and the ledger of what a run has spent and reserved."""

import asyncio
import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from stillhouse.config import BudgetConfig
from stillhouse.errors import BudgetReached
from stillhouse.inference.endpoint import Price
from stillhouse.types import Turn

_PICO: Final = 10**12


@dataclass(frozen=True, slots=True)
class Spend:
    requests: int = 0
    tokens: int = 0
    usd: float | None = 0.0
    """None when the price is unknown; never 0 for unknown."""

    def __add__(self, other: "Spend") -> "Spend":
        usd = None if self.usd is None or other.usd is None else self.usd + other.usd
        return Spend(self.requests + other.requests, self.tokens + other.tokens, usd)


NOTHING: Final = Spend()
"""Of a request that was never sent."""
REFUSED: Final = Spend(requests=1)
"""Of a request that was answered with an error."""


def spend_of(turn: Turn, price: Price | None) -> Spend | None:
    """What one completion cost; None when its endpoint did not say how many tokens it took.

    Args:
        turn: the completion's facts; its own cost goes before any price.
        price: for where the turn has no cost.
    """
    usage = turn.usage
    if "prompt_tokens" not in usage or "completion_tokens" not in usage:
        return None
    usd = turn.cost_usd
    if usd is None and price is not None:
        usd = price.of(usage)
    return Spend(1, usage["prompt_tokens"] + usage["completion_tokens"], usd)


class Amounts(NamedTuple):
    """Requests, tokens and picodollars; an unknown price counts no money."""

    requests: int
    tokens: int
    picodollars: int

    @classmethod
    def of(cls, spend: Spend) -> "Amounts":
        """A spend as whole numbers. Rounding is monotone: the larger spend has the larger amounts."""
        return cls(spend.requests, spend.tokens, 0 if spend.usd is None else round(spend.usd * _PICO))

    def spend(self, *, usd_known: bool = True) -> Spend:
        return Spend(self.requests, self.tokens, self.picodollars / _PICO if usd_known else None)

    def plus(self, other: "Amounts") -> "Amounts":
        return Amounts(self[0] + other[0], self[1] + other[1], self[2] + other[2])

    def minus(self, other: "Amounts") -> "Amounts":
        return Amounts(self[0] - other[0], self[1] - other[1], self[2] - other[2])

    def above(self, other: "Amounts") -> "Amounts":
        """The excess over `other`, each figure by itself."""
        return Amounts(max(0, self[0] - other[0]), max(0, self[1] - other[1]), max(0, self[2] - other[2]))


ZERO: Final = Amounts(0, 0, 0)


@dataclass(frozen=True, slots=True)
class BudgetCaps:
    """The most that may be counted; infinity where nothing is set."""

    requests: float
    tokens: float
    picodollars: float

    @classmethod
    def of(cls, config: BudgetConfig) -> "BudgetCaps":
        return cls(
            math.inf if config.max_requests is None else config.max_requests,
            math.inf if config.max_tokens is None else config.max_tokens,
            math.inf if config.max_usd is None else round(config.max_usd * _PICO),
        )

    def hold(self, amounts: Amounts) -> bool:
        return amounts[0] <= self.requests and amounts[1] <= self.tokens and amounts[2] <= self.picodollars


@dataclass(slots=True, eq=False)
class _Waiter:
    worst: Amounts
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[None]"


class ReservationLedger:
    """Room below the caps. Safe to use from several threads and event loops at once.

    Requests are served in order of arrival, so that a large one does not starve.

    Args:
        caps: the most that may be counted.
        refuse: the error for a request that can never be sent, by its worst case and whether that fits together with
            what is counted. Called under the lock.
    """

    def __init__(self, caps: BudgetCaps, refuse: Callable[[Amounts, bool], BudgetReached | None]) -> None:
        self._caps = caps
        self._refuse = refuse
        self._lock = threading.Lock()
        self._waiters: deque[_Waiter] = deque()
        self.counted = ZERO
        """Only ever grows."""
        self.possible = ZERO
        """The part of `counted` that is an upper bound."""
        self.reserved = ZERO

    @property
    def waiting(self) -> int:
        with self._lock:
            return sum(not waiter.future.done() for waiter in self._waiters)

    async def reserve(self, worst: Amounts) -> None:
        """Waits until `worst` fits below the caps together with everything counted and reserved.

        Raises:
            BudgetReached: what is counted leaves no room, so that no request in flight can free any.
        """
        with self._lock:
            error = self._error(worst)
            if error is not None:
                raise error
            if not self._waiters and self._take(worst):
                return
            loop = asyncio.get_running_loop()
            waiter = _Waiter(worst, loop, loop.create_future())
            self._waiters.append(waiter)
            # Those before it may belong to event loops that are gone.
            self._admit()
        try:
            await waiter.future
        except asyncio.CancelledError:
            if waiter.future.done() and not waiter.future.cancelled() and waiter.future.exception() is None:
                self.settle(worst, ZERO, ZERO)
            else:
                self.settle(ZERO, ZERO, ZERO)
            raise

    def settle(self, worst: Amounts, spent: Amounts, possible: Amounts) -> None:
        """Frees what was reserved and counts what was spent, of which `possible` is an upper bound."""
        with self._lock:
            self.reserved = self.reserved.minus(worst)
            self.counted = self.counted.plus(spent)
            self.possible = self.possible.plus(possible)
            if self._waiters:
                self._admit()

    def _error(self, worst: Amounts) -> BudgetReached | None:
        return self._refuse(worst, self._caps.hold(self.counted.plus(worst)))

    def _take(self, worst: Amounts) -> bool:
        reserved = self.reserved.plus(worst)
        if not self._caps.hold(self.counted.plus(reserved)):
            return False
        self.reserved = reserved
        return True

    def _admit(self) -> None:
        """Admits or refuses requests from the head of the queue until one has to wait. Under the lock."""
        while self._waiters:
            waiter = self._waiters[0]
            if not (waiter.future.done() or waiter.loop.is_closed()):
                error = self._error(waiter.worst)
                if error is None and not self._take(waiter.worst):
                    return
                self._deliver_soon(waiter, error)
            self._waiters.popleft()

    def _deliver_soon(self, waiter: _Waiter, error: BudgetReached | None) -> None:
        try:
            waiter.loop.call_soon_threadsafe(self._deliver, waiter, error)
        except RuntimeError:  # its loop was closed a moment ago
            if error is None:
                self.reserved = self.reserved.minus(waiter.worst)

    def _deliver(self, waiter: _Waiter, error: BudgetReached | None) -> None:
        if not waiter.future.done():
            if error is None:
                waiter.future.set_result(None)
            else:
                waiter.future.set_exception(error)
        elif error is None:
            self.settle(waiter.worst, ZERO, ZERO)
