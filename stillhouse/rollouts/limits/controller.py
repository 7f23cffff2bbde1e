"""`Controller`: the queue before `RateControl`, shared by all event loops of the process.

Limits belong to an account and a model, not to a shard, so everything in the process that asks the same model with the
same key waits in one queue: requests of rollouts already under way first, then in order of arrival.
"""

import asyncio
import hashlib
import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stillhouse.rollouts.endpoint import Endpoint
from stillhouse.rollouts.limits.control import RateControl
from stillhouse.rollouts.limits.values import Caps, ControlSnapshot, Outcome, RequestSize, Ticket

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class _Waiter:
    size: RequestSize
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Ticket]"


class Controller:
    """Admits requests to one endpoint. Safe to use from several threads and event loops at once.

    Args:
        control: the state machine that decides.
        clock: seconds that never go back.
    """

    def __init__(self, control: RateControl, clock: Callable[[], float] = time.monotonic) -> None:
        self._control = control
        self._clock = clock
        self._lock = threading.Lock()
        self._queue: list[tuple[bool, int, _Waiter]] = []
        self._order = itertools.count()
        self._wake_at = float("-inf")

    @property
    def limit(self) -> int:
        """Requests that may be in flight now."""
        return self._control.limit

    def cap(self, caps: Caps) -> None:
        """Sets what the user allows at most."""
        with self._lock:
            self._control.caps = caps

    def try_acquire(self, size: RequestSize, *, continuing: bool) -> Ticket | None:
        """Leave to send one request at once, or None where it would have to wait; nobody who waits is overtaken.

        Args:
            size: what is known of the request.
            continuing: whether the rollout has been under way; these go before new ones.
        """
        with self._lock:
            self._admit()
            if self._queue and (not continuing or not self._queue[0][0]):
                return None
            return self._control.admit(size, self._clock())

    async def acquire(self, size: RequestSize, *, continuing: bool) -> Ticket:
        """Waits for leave to send one request; `release` gives it back.

        Args:
            size: what is known of the request.
            continuing: whether the rollout has been under way; these go before new ones.
        """
        loop = asyncio.get_running_loop()
        waiter = _Waiter(size, loop, loop.create_future())
        with self._lock:
            heapq.heappush(self._queue, (not continuing, next(self._order), waiter))
            self._admit()
        try:
            return await waiter.future
        except asyncio.CancelledError:
            if waiter.future.done() and not waiter.future.cancelled():
                self.release(waiter.future.result(), None)
            raise

    def release(self, ticket: Ticket, outcome: Outcome | None) -> None:
        """Reports how a request ended; None for one that was given up on our side."""
        with self._lock:
            cuts = self._control.num_cuts
            self._control.settle(ticket, outcome, self._clock())
            if self._control.num_cuts != cuts:
                _LOG.info("requests in flight: at most %d now (%s)", self._control.limit, self._control.reason)
            self._admit()

    def snapshot(self) -> ControlSnapshot:
        """The state as a person wants to see it."""
        with self._lock:
            waiting = sum(not waiter.future.done() for _, _, waiter in self._queue)
            return self._control.snapshot(self._clock(), waiting)

    def _admit(self) -> None:
        """Lets through what may go, under the lock."""
        now = self._clock()
        while self._queue:
            _, _, waiter = self._queue[0]
            if waiter.future.done() or waiter.loop.is_closed():
                heapq.heappop(self._queue)
                continue
            ticket = self._control.admit(waiter.size, now)
            if ticket is None:
                self._wake_later(now)
                return
            heapq.heappop(self._queue)
            self._deliver_soon(waiter, ticket)

    def _deliver_soon(self, waiter: _Waiter, ticket: Ticket) -> None:
        try:
            waiter.loop.call_soon_threadsafe(self._deliver, waiter, ticket)
        except RuntimeError:  # its loop was closed a moment ago
            self._control.settle(ticket, None, self._clock())

    def _deliver(self, waiter: _Waiter, ticket: Ticket) -> None:
        if waiter.future.done():
            self.release(ticket, None)
        else:
            waiter.future.set_result(ticket)

    def _wake_later(self, now: float) -> None:
        wait_s = self._control.wait_s(now)
        if wait_s is None or now < self._wake_at <= now + wait_s:
            return
        self._wake_at = now + wait_s
        # A thread's timer, as any of the event loops may be gone when the gate opens.
        timer = threading.Timer(wait_s, self._wake)
        timer.daemon = True
        timer.start()

    def _wake(self) -> None:
        with self._lock:
            self._admit()


_shared: Final[dict[tuple[str, str, str], Controller]] = {}
_shared_lock: Final = threading.Lock()


def shared_controller(endpoint: Endpoint, *, initial: int, caps: Caps, memory: Path | None) -> Controller:
    """The process's controller for (base URL, key, model); what it has learnt stays when a shard ends.

    Args:
        endpoint: who is asked.
        initial: requests in flight at the start, for the first who asks.
        caps: what the user allows at most; the latest value holds.
        memory: file that keeps what was learnt for the next process; None keeps nothing.
    """
    key = (endpoint.base_url, hashlib.sha256(endpoint.api_key.encode()).hexdigest(), endpoint.model)
    with _shared_lock:
        controller = _shared.get(key)
        if controller is None:
            controller = _shared[key] = Controller(RateControl(initial, caps))
    controller.cap(caps)
    return controller
