import asyncio

from stillhouse.tools.network.politeness import Politeness


class Clock:
    """Time that passes only where somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


def starts(hosts: list[str], spacing_s: float) -> list[float]:
    async def run() -> list[float]:
        clock = Clock()
        politeness = Politeness(max_at_once=1, spacing_s=spacing_s, clock=clock, sleep=clock.sleep)
        started = []
        for host in hosts:
            async with politeness.turn(host):
                started.append(clock.now - 100.0)
        return started

    return asyncio.run(run())


def test_requests_to_one_host_are_spaced_and_hosts_do_not_wait_for_each_other() -> None:
    assert starts(["a", "a", "a"], 0.5) == [0.0, 0.5, 1.0]
    assert starts(["a", "b", "c"], 0.5) == [0.0, 0.0, 0.0]


def test_a_host_sees_no_more_than_so_many_at_once_and_in_order() -> None:
    async def run() -> tuple[int, list[int]]:
        politeness = Politeness(max_at_once=3, spacing_s=0.0)
        inside = most = 0
        order: list[int] = []

        async def visit(number: int) -> None:
            nonlocal inside, most
            async with politeness.turn("a"):
                order.append(number)
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0.01)
                inside -= 1

        await asyncio.gather(*(visit(number) for number in range(12)))
        return most, order

    most, order = asyncio.run(run())
    assert most == 3
    assert order == sorted(order)


def test_a_visitor_that_gives_up_frees_its_place() -> None:
    async def run() -> None:
        politeness = Politeness(max_at_once=1, spacing_s=0.0)
        async with politeness.turn("a"):
            waiting = asyncio.create_task(_enter(politeness))
            await asyncio.sleep(0)
            waiting.cancel()
        await asyncio.wait_for(_enter(politeness), 60.0)

    asyncio.run(run())


def test_hosts_of_long_ago_are_forgotten() -> None:
    async def run() -> int:
        politeness = Politeness(max_at_once=1, spacing_s=0.0)
        for number in range(3000):
            await _enter(politeness, f"host{number}")
        return len(politeness._hosts)

    assert asyncio.run(run()) <= 1001


async def _enter(politeness: Politeness, host: str = "a") -> None:
    async with politeness.turn(host):
        pass
