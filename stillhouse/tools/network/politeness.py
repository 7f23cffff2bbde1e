"""How hard a host is asked: a few requests at once, and a pause between their starts."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

_MAX_AT_ONCE: Final = 4
_SPACING_S: Final = 0.2
_MAX_REMEMBERED: Final = 1000


@dataclass(slots=True)
class _Lane:
    free: asyncio.Semaphore
    next_start: float = 0.0
    num_users: int = field(default=0)


class Politeness:
    """Turns at hosts. A host that hundreds of rollouts name at the same time sees a calm visitor.

    Args:
        max_at_once: requests a host sees at the same time.
        spacing_s: seconds between the starts of two requests to one host.
        clock: seconds that never go back.
        sleep: waits that many seconds.
    """

    def __init__(
        self,
        max_at_once: int = _MAX_AT_ONCE,
        spacing_s: float = _SPACING_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._max_at_once = max_at_once
        self._spacing_s = spacing_s
        self._clock = clock
        self._sleep = sleep
        self._lanes: dict[str, _Lane] = {}

    @asynccontextmanager
    async def turn(self, host: str) -> AsyncIterator[None]:
        """Entered when it is this request's turn at the host, first come, first served."""
        lane = self._lanes.setdefault(host, _Lane(asyncio.Semaphore(self._max_at_once)))
        lane.num_users += 1
        try:
            async with lane.free:
                now = self._clock()
                start = max(now, lane.next_start)
                lane.next_start = start + self._spacing_s
                if start > now:
                    await self._sleep(start - now)
                yield
        finally:
            lane.num_users -= 1
            if len(self._lanes) > _MAX_REMEMBERED:
                self._forget_idle()

    def _forget_idle(self) -> None:
        now = self._clock()
        for host, lane in list(self._lanes.items()):
            if lane.num_users == 0 and lane.next_start <= now:
                del self._lanes[host]
