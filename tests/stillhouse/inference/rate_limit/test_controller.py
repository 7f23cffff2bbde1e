import asyncio
import hashlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stillhouse.inference import Controller, Endpoint, shared_controller
from stillhouse.inference.failures import FailureKind
from stillhouse.inference.learnt_file import LearntFile
from stillhouse.inference.rate_limit import Caps, LimitScope, Outcome, RateControl, RequestSize
from stillhouse.inference.rate_limit.values import LearntLimits

RunInVirtualTime = Callable[..., Any]

OK = Outcome(None)

SIZE = RequestSize(100, 100)


def test_continuing_rollouts_go_before_new_ones_and_each_in_order() -> None:
    async def main() -> list[str]:
        controller = Controller(RateControl(1, Caps(1)))
        held = await controller.acquire(SIZE, continuing=False)
        order: list[str] = []

        async def one(name: str, continuing: bool) -> None:
            ticket = await controller.acquire(SIZE, continuing=continuing)
            order.append(name)
            controller.release(ticket, OK)

        tasks = []
        for name, continuing in [("new 1", False), ("old 1", True), ("new 2", False), ("old 2", True)]:
            tasks.append(asyncio.create_task(one(name, continuing)))
            await asyncio.sleep(0)
        assert controller.snapshot().waiting == 4
        controller.release(held, OK)
        await asyncio.gather(*tasks)
        return order

    assert asyncio.run(main()) == ["old 1", "old 2", "new 1", "new 2"]


def test_a_waiter_that_is_cancelled_at_any_moment_loses_no_slot() -> None:
    async def main() -> None:
        controller = Controller(RateControl(1, Caps(1)))
        for naps in range(4):
            held = await controller.acquire(SIZE, continuing=False)
            waiting = asyncio.create_task(controller.acquire(SIZE, continuing=False))
            await asyncio.sleep(0)
            controller.release(held, OK)
            for _ in range(naps):
                await asyncio.sleep(0)
            waiting.cancel()
            got = await asyncio.gather(waiting, return_exceptions=True)
            if not isinstance(got[0], BaseException):
                controller.release(got[0], OK)
            await asyncio.sleep(0.01)
            assert controller.snapshot().in_flight == 0

    asyncio.run(asyncio.wait_for(main(), 60))


def test_event_loops_of_several_threads_share_one_limit() -> None:
    controller = Controller(RateControl(3, Caps(3)))
    lock = threading.Lock()
    now, peak, done = 0, 0, 0

    async def one() -> None:
        nonlocal now, peak, done
        ticket = await controller.acquire(SIZE, continuing=False)
        with lock:
            now += 1
            peak = max(peak, now)
        await asyncio.sleep(0.002)
        with lock:
            now -= 1
            done += 1
        controller.release(ticket, OK)

    async def many() -> None:
        await asyncio.gather(*(one() for _ in range(40)))

    threads = [threading.Thread(target=lambda: asyncio.run(many())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert done == 120
    assert peak == 3


def test_waiters_go_on_by_themselves_when_the_gate_opens(run_in_virtual_time: RunInVirtualTime) -> None:
    async def main() -> float:
        clock = asyncio.get_running_loop().time
        controller = Controller(RateControl(4, Caps(4)), clock)
        ticket = await controller.acquire(SIZE, continuing=False)
        controller.release(ticket, Outcome(FailureKind.RATE, 20.0))
        waiting = [asyncio.create_task(controller.acquire(SIZE, continuing=False)) for _ in range(2)]
        controller.release(await waiting[0], OK)
        await waiting[1]
        return clock()

    assert run_in_virtual_time(main()) == pytest.approx(20.0, abs=1.0)


def test_the_process_has_one_controller_for_an_endpoint_a_model_and_a_key() -> None:
    def get(url: str, model: str, key: str, maximum: int = 9) -> Controller:
        return shared_controller(Endpoint(url, model, model, key), initial=2, caps=Caps(maximum), memory=None)

    first = get("http://a/v1", "m", "k")
    assert get("http://a/v1", "m", "k") is first
    others = [get("http://b/v1", "m", "k"), get("http://a/v1", "n", "k"), get("http://a/v1", "m", "l")]
    assert all(other is not first for other in others)
    assert first.limit == 2
    get("http://a/v1", "m", "k", maximum=1)
    assert first.limit == 1


def test_a_free_slot_is_had_at_once_and_nobody_of_the_same_kind_is_overtaken() -> None:
    now = 0.0

    async def main() -> None:
        nonlocal now
        controller = Controller(RateControl(2, Caps(2, requests_per_minute=600.0)), clock=lambda: now)
        first = await controller.acquire(SIZE, continuing=False)
        waiting = []
        for continuing in (True, False, True):
            waiting.append(asyncio.create_task(controller.acquire(SIZE, continuing=continuing)))
            await asyncio.sleep(0)
        controller.release(first, OK)
        assert not any(task.done() for task in waiting)
        now = 1.0
        waiting.append(asyncio.create_task(controller.acquire(SIZE, continuing=False)))
        await asyncio.sleep(0.01)
        assert [task.done() for task in waiting] == [True, False, False, False]
        for task in waiting:
            task.cancel()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_paced_queue_goes_on_by_itself_and_starts_no_threads(run_in_virtual_time: RunInVirtualTime) -> None:
    async def main() -> tuple[float, int]:
        clock = asyncio.get_running_loop().time
        controller = Controller(RateControl(4, Caps(4, requests_per_minute=6000.0)), clock)

        async def one() -> None:
            controller.release(await controller.acquire(SIZE, continuing=False), OK)

        await asyncio.gather(*(one() for _ in range(60)))
        return clock(), threading.active_count()

    before = threading.active_count()
    took_s, num_threads = run_in_virtual_time(main())
    assert took_s == pytest.approx(0.6, abs=0.1)
    assert num_threads == before


def test_what_was_learnt_is_kept_when_the_last_request_has_come_in(tmp_path: Path) -> None:
    memory = LearntFile(tmp_path / "limits.json", "endpoint", LearntLimits, 60.0)
    controller = Controller(RateControl(1, Caps(9)), memory=memory)
    ticket = asyncio.run(controller.acquire(SIZE, continuing=False))
    controller.release(ticket, Outcome(FailureKind.RATE, scope=LimitScope.CONCURRENCY))
    while memory.load() is None:
        time.sleep(0.01)
    assert memory.load() == LearntLimits(in_flight=1)


def test_a_resumed_run_starts_at_the_limit_on_file(tmp_path: Path) -> None:
    endpoint = Endpoint("http://resumed/v1", "m", "m", "secret-key")
    name = hashlib.sha256(
        "\n".join([endpoint.base_url, hashlib.sha256(b"secret-key").hexdigest(), "m"]).encode()
    ).hexdigest()
    LearntFile(tmp_path / "limits.json", name, LearntLimits, 60.0).save(LearntLimits(in_flight=77))
    assert b"secret-key" not in (tmp_path / "limits.json").read_bytes()
    controller = shared_controller(endpoint, initial=20, caps=Caps(1000), memory=tmp_path / "limits.json")
    assert controller.limit == 77
