"""`ReservationLedger`: spent, reserved, and the queue of requests that wait for room under the caps of a run."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from stillhouse.errors import BudgetReached
from stillhouse.inference.budget.amounts import ZERO, Amounts, Caps


@dataclass(slots=True, eq=False)
class _Waiter:
    worst: Amounts
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[None]"


class ReservationLedger:
    """Room below the caps. Safe to use from several threads and event loops at once.

    Whoever waits is served in order of arrival, so that small requests do not pass a large one for ever.

    Args:
        caps: the most that may be counted.
        refuse: the error for a request that cannot be sent any more, whatever becomes of those in flight; it is given
            the request's worst case and whether that fits beside what is counted alone. Called under the lock.
    """

    def __init__(self, caps: Caps, refuse: Callable[[Amounts, bool], BudgetReached | None]) -> None:
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
        """Requests in the queue."""
        with self._lock:
            return sum(not waiter.future.done() for waiter in self._waiters)

    async def reserve(self, worst: Amounts) -> None:
        """Waits until `worst` fits below the caps beside all that is counted and reserved.

        Raises:
            BudgetReached: what is counted leaves no room for it, so nothing in flight can make any.
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
        """Lets through, or turns away, the first in the queue until one has to wait on. Under the lock."""
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
