import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from stillhouse.tools.running import ConcurrencyLimit


class Gauge:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.now = self.most = self.total = 0

    async def use(self, limit: ConcurrencyLimit) -> None:
        async with limit.slot():
            with self.lock:
                self.now += 1
                self.total += 1
                self.most = max(self.most, self.now)
            await asyncio.sleep(0.005)
            with self.lock:
                self.now -= 1


def most_at_once(limit: ConcurrencyLimit, num_callers: int) -> int:
    gauge = Gauge()

    async def many() -> None:
        await asyncio.gather(*(gauge.use(limit) for _ in range(num_callers)))

    asyncio.run(many())
    return gauge.most


def test_callers_of_several_event_loops_share_the_places() -> None:
    limit, gauge = ConcurrencyLimit(3), Gauge()

    def loop(_: int) -> None:
        async def many() -> None:
            await asyncio.gather(*(gauge.use(limit) for _ in range(10)))

        asyncio.run(many())

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(loop, range(4)))
    assert (gauge.most, gauge.total, gauge.now) == (3, 40, 0)


def test_sandboxed_tools_have_a_limit_of_their_own() -> None:
    num_cores = os.cpu_count() or 1
    assert most_at_once(ConcurrencyLimit.of(None, sandbox=True), 3 * num_cores) == 2 * num_cores
    assert most_at_once(ConcurrencyLimit.of(None, sandbox=False), 3 * num_cores) == 3 * num_cores, "no limit"
    assert most_at_once(ConcurrencyLimit.of(7, sandbox=True), 50) == 7


def test_slots_are_granted_in_the_order_of_the_requests() -> None:
    limit = ConcurrencyLimit(1)
    served = []

    async def use(number: int) -> None:
        async with limit.slot():
            served.append(number)
            await asyncio.sleep(0)

    async def many() -> None:
        await asyncio.gather(*map(use, range(5)))

    asyncio.run(many())
    assert served == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("when", ["waiting", "just served", "inside"])
def test_a_cancelled_caller_leaves_its_place_to_the_next(when: str) -> None:
    async def run() -> None:
        limit = ConcurrencyLimit(1)
        release = asyncio.Event()

        async def hold() -> None:
            async with limit.slot():
                await release.wait()

        holder = asyncio.create_task(hold())
        await asyncio.sleep(0)
        given_up = asyncio.create_task(Gauge().use(limit))
        await asyncio.sleep(0)
        if when != "waiting":
            release.set()
            await holder
        if when == "inside":
            await asyncio.sleep(0.002)
        given_up.cancel()
        release.set()
        await asyncio.wait({holder, given_up})
        async with asyncio.timeout(60), limit.slot():
            pass

    asyncio.run(run())
