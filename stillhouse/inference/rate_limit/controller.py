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
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from stillhouse.config import RuntimeConfig
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.learnt_file import LearntFile
from stillhouse.inference.rate_limit.control import RateControl
from stillhouse.inference.rate_limit.values import Caps, ControlSnapshot, LearntLimits, Outcome, RequestSize, Ticket

_LOG = logging.getLogger(__name__)
_LOG_S: Final = 10.0
_SAVE_S: Final = 10.0
_STALE_S: Final = 6 * 3600.0


@dataclass(slots=True)
class _Waiter:
    size: RequestSize
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Ticket]"


class Controller:
    """Admits requests to one endpoint. Safe to use from several threads and event loops at once."""

    def __init__(
        self,
        control: RateControl,
        clock: Callable[[], float] = time.monotonic,
        memory: LearntFile[LearntLimits] | None = None,
    ) -> None:
        self._control = control
        self._clock = clock
        self._memory = memory
        self._lock = threading.Lock()
        self._queue: list[tuple[bool, int, _Waiter]] = []
        self._order = itertools.count()
        self._loops: Counter[asyncio.AbstractEventLoop] = Counter()
        self._wakes: dict[asyncio.AbstractEventLoop, float] = {}
        self._logged_at = float("-inf")
        self._logged_cuts = control.num_cuts
        self._saved_at = float("-inf")
        self._saved_cuts = control.num_cuts

    @property
    def limit(self) -> int:
        return self._control.limit

    def cap(self, caps: Caps) -> None:
        with self._lock:
            self._control.brakes.cap(caps)

    async def acquire(self, size: RequestSize, *, continuing: bool) -> Ticket:
        """Wait for permission to send one request; `release` gives it back.

        Requests of rollouts under way (`continuing`) go before those of new ones; no other waiting one is overtaken.
        """
        with self._lock:
            if self._queue:
                self._admit()
            if not self._queue or (continuing and self._queue[0][0]):
                ticket = self._control.admit(size, self._clock())
                if ticket is not None:
                    return ticket
            loop = asyncio.get_running_loop()
            waiter = _Waiter(size, loop, loop.create_future())
            heapq.heappush(self._queue, (not continuing, next(self._order), waiter))
            self._loops[loop] += 1
            self._admit()
        try:
            return await waiter.future
        except asyncio.CancelledError:
            if waiter.future.done() and not waiter.future.cancelled():
                self.release(waiter.future.result(), None)
            raise

    def release(self, ticket: Ticket, outcome: Outcome | None) -> None:
        with self._lock:
            now = self._clock()
            self._control.settle(ticket, outcome, now)
            self._admit()
            if self._control.num_cuts != self._logged_cuts and now - self._logged_at >= _LOG_S:
                self._logged_at, self._logged_cuts = now, self._control.num_cuts
                _LOG.info("limits: %d in flight, %s", self._control.limit, self._control.reason)
            keep = self._worth_keeping(now)
        if keep is not None and self._memory is not None:
            # In a thread, as the disk may be slow and the caller runs an event loop.
            threading.Thread(target=self._memory.save, args=(keep,), name="limits-memory").start()

    def snapshot(self) -> ControlSnapshot:
        with self._lock:
            waiting = sum(not waiter.future.done() for _, _, waiter in self._queue)
            return self._control.snapshot(waiting)

    def _admit(self) -> None:
        """Admit all requests that may be sent, under the lock."""
        now = self._clock()
        while self._queue:
            _, _, waiter = self._queue[0]
            if waiter.future.done() or waiter.loop.is_closed():
                self._pop()
                continue
            ticket = self._control.admit(waiter.size, now)
            if ticket is None:
                self._wake_later(now)
                return
            self._pop()
            self._deliver_soon(waiter, ticket)

    def _pop(self) -> None:
        loop = heapq.heappop(self._queue)[2].loop
        self._loops[loop] -= 1
        if not self._loops[loop]:
            del self._loops[loop]

    def _deliver_soon(self, waiter: _Waiter, ticket: Ticket) -> None:
        if waiter.loop is _current_loop():
            waiter.future.set_result(ticket)
            return
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
        """Wake every waiting loop when time alone may admit a request: any of the others may end."""
        wait_s = self._control.wait_s(now)
        if wait_s is None:
            return
        at = now + wait_s
        current = _current_loop()
        for loop in list(self._loops):
            if self._wakes.get(loop, float("inf")) <= at:
                continue
            try:
                if loop is current:
                    loop.call_later(wait_s, self._wake, loop, at)
                else:
                    loop.call_soon_threadsafe(loop.call_later, wait_s, self._wake, loop, at)
            except RuntimeError:  # closed a moment ago, with all its waiters
                continue
            self._wakes[loop] = at

    def _wake(self, loop: asyncio.AbstractEventLoop, at: float) -> None:
        with self._lock:
            if self._wakes.get(loop) == at:
                del self._wakes[loop]
            self._admit()

    def _worth_keeping(self, now: float) -> LearntLimits | None:
        """Return the limits to save, at intervals and when no request is in flight; None if nothing changed."""
        if self._memory is None or self._control.num_cuts == self._saved_cuts:
            return None
        if now - self._saved_at < _SAVE_S and self._control.brakes.window.in_flight:
            return None
        self._saved_at, self._saved_cuts = now, self._control.num_cuts
        return self._control.brakes.learnt()


def _current_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


_shared: Final[dict[str, Controller]] = {}
_shared_lock: Final = threading.Lock()


def controller_of(endpoint: Endpoint, runtime: RuntimeConfig) -> Controller:
    """Return the process's controller for an endpoint, within the runtime's caps.

    The limit of a server of this run's own is known; the store keeps what is learnt of others.
    """
    caps = Caps(runtime.max_concurrency, runtime.max_requests_per_minute, runtime.max_tokens_per_minute)
    if endpoint.capacity is None:
        return shared_controller(endpoint, initial=runtime.concurrency, caps=caps, memory=limits_file(runtime))
    caps = replace(caps, concurrency=min(endpoint.capacity, caps.concurrency))
    return shared_controller(endpoint, initial=endpoint.capacity, caps=caps, memory=None)


def limits_file(runtime: RuntimeConfig) -> Path:
    """Return the file of a store that keeps the limits learnt for the next process."""
    return Path(runtime.store) / "limits.json"


def shared_controller(endpoint: Endpoint, *, initial: int, caps: Caps, memory: Path | None) -> Controller:
    """Return the process's controller for (base URL, key, model), which outlives a shard.

    The first caller's `initial` and `memory` hold, and the latest caller's `caps`; without `memory` nothing is kept for
    the next process.
    """
    key = hashlib.sha256(endpoint.api_key.encode()).hexdigest()
    name = hashlib.sha256("\n".join([endpoint.base_url, key, endpoint.model]).encode()).hexdigest()
    with _shared_lock:
        controller = _shared.get(name)
        if controller is None:
            kept = None if memory is None else LearntFile(memory, name, LearntLimits, _STALE_S)
            learnt = None if kept is None else kept.load()
            control = RateControl(initial, caps, learnt, is_known=endpoint.capacity is not None)
            controller = _shared[name] = Controller(control, memory=kept)
    controller.cap(caps)
    return controller
