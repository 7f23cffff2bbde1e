"""Rate limits of requests to one host: a few at a time, and a pause between their starts."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

_MAX_REMEMBERED: Final = 1000


@dataclass(slots=True)
class _HostState:
    free: asyncio.Semaphore
    next_start: float = 0.0
    num_users: int = 0


class Politeness:
    """Limits requests per host, however many rollouts name it at the same time.

    At most `max_at_once` go to a host together, and `spacing_s` seconds lie between the starts of two.
    """

    def __init__(
        self,
        max_at_once: int = 4,
        spacing_s: float = 0.2,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._max_at_once = max_at_once
        self._spacing_s = spacing_s
        self._clock = clock
        self._sleep = sleep
        self._hosts: dict[str, _HostState] = {}

    @asynccontextmanager
    async def turn(self, host: str) -> AsyncIterator[None]:
        """Wait for this request's turn at the host, first come, first served."""
        state = self._hosts.setdefault(host, _HostState(asyncio.Semaphore(self._max_at_once)))
        state.num_users += 1
        try:
            async with state.free:
                now = self._clock()
                start = max(now, state.next_start)
                state.next_start = start + self._spacing_s
                if start > now:
                    await self._sleep(start - now)
                yield
        finally:
            state.num_users -= 1
            if len(self._hosts) > _MAX_REMEMBERED:
                now = self._clock()
                is_used = {host: state.num_users > 0 or state.next_start > now for host, state in self._hosts.items()}
                self._hosts = {host: state for host, state in self._hosts.items() if is_used[host]}
