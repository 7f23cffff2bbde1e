import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from stillhouse.inference.completion import Completion
from stillhouse.inference.failures import Failure, FailureKind, RequestFailed
from stillhouse.inference.hedge import Hedging, Race
from stillhouse.types import Turn

OVERDUE_S = 2.0

RunRace = Callable[..., tuple[str, list[str]]]


def answer(name: str) -> Completion:
    return Completion({"role": "assistant", "content": name}, Turn("stop", {}, 0.1, "m"))


def warm(*, num_answers: int = 320, latency_s: float = 0.001) -> Hedging:
    hedging = Hedging(enabled=True, least_s=OVERDUE_S)
    for _ in range(num_answers):
        hedging.note(latency_s)
    return hedging


class Sends:
    """Sends that note their cancellation."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []

    async def send(self, name: str, seconds: float, *, fails: bool = False) -> Completion:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise
        if fails:
            raise RequestFailed(Failure(FailureKind.TRANSIENT, f"{name} failed"))
        return answer(name)


@pytest.fixture
def race(run_in_virtual_time: Callable[..., Any]) -> RunRace:
    """Return who answered, and who was given up."""

    def run(hedging: Hedging, first: tuple[float, bool], copy: tuple[float, bool]) -> tuple[str, list[str]]:
        sends = Sends()

        def send_copy() -> Coroutine[None, None, Completion]:
            return sends.send("copy", copy[0], fails=copy[1])

        async def main() -> Completion:
            async with Race(hedging, send_copy) as race:
                race.answer = await sends.send("first", first[0], fails=first[1])
            await asyncio.sleep(0)
            assert race.by_copy is (race.answer.message["content"] == "copy")
            return race.answer

        completion = run_in_virtual_time(main())
        return str(completion.message["content"]), sends.cancelled

    return run


def test_nothing_is_overdue_before_latencies_are_known_or_once_it_is_switched_off(race: RunRace) -> None:
    early, off = warm(num_answers=15), warm()
    assert early.overdue_s is None
    off.stop()
    for hedging in (early, off):
        assert race(hedging, (3 * OVERDUE_S, False), (0.0, False)) == ("first", [])
        assert hedging.num_copies == 0
    assert off.until_copy_s(60.0) == OVERDUE_S


def test_what_was_sent_before_latencies_were_known_is_overdue_once_they_are(
    run_in_virtual_time: Callable[..., Any],
) -> None:
    hedging = warm(num_answers=10)

    async def main() -> Completion:
        asyncio.get_running_loop().call_later(2.5 * OVERDUE_S, lambda: [hedging.note(0.001) for _ in range(20)])
        sends = Sends()
        async with Race(hedging, lambda: sends.send("copy", 0.0)) as race:
            race.answer = await sends.send("first", 30.0)
        return race.answer

    assert run_in_virtual_time(main()).message["content"] == "copy"


def test_overdue_is_five_times_the_slowest_percent_and_never_less_than_the_bound() -> None:
    assert warm(latency_s=0.001).overdue_s == OVERDUE_S
    hedging = warm(latency_s=1.0)
    assert hedging.overdue_s == 5.0
    for _ in range(4):
        hedging.note(9.0)
    for _ in range(28):
        hedging.note(1.0)
    assert hedging.overdue_s == 45.0


@pytest.mark.parametrize(
    ("first", "copy", "answered_by", "given_up", "num_copies"),
    [
        ((0.0, False), (0.0, False), "first", [], 0),
        ((30.0, False), (0.0, False), "copy", ["first"], 1),
        ((2 * OVERDUE_S, False), (30.0, False), "first", ["copy"], 1),
        ((4.5 * OVERDUE_S, False), (0.0, True), "first", [], 4),
        ((2 * OVERDUE_S, True), (2 * OVERDUE_S, False), "copy", [], 1),
    ],
    ids=["in time", "silent", "slow, but before the copy", "failed copies change nothing", "the copy decides"],
)
def test_the_first_good_answer_is_taken(
    race: RunRace,
    first: tuple[float, bool],
    copy: tuple[float, bool],
    answered_by: str,
    given_up: list[str],
    num_copies: int,
) -> None:
    hedging = warm()
    assert race(hedging, first, copy) == (answered_by, given_up)
    assert hedging.num_copies == num_copies


def test_the_failure_of_both_is_a_failure(race: RunRace) -> None:
    with pytest.raises(RequestFailed, match="failed"):
        race(warm(), (3 * OVERDUE_S, True), (0.0, True))


def test_copies_are_a_small_share_of_all_requests(race: RunRace) -> None:
    hedging = warm(num_answers=200)
    slow = [race(hedging, (2 * OVERDUE_S, False), (0.0, False))[0] for _ in range(12)]
    assert hedging.num_copies == 10
    assert slow == ["copy"] * 10 + ["first"] * 2


def test_one_who_is_cancelled_from_outside_ends_with_both_given_up(run_in_virtual_time: Callable[..., Any]) -> None:
    sends, hedging = Sends(), warm()

    async def ask() -> None:
        async with Race(hedging, lambda: sends.send("copy", 30.0)) as race:
            race.answer = await sends.send("first", 30.0)

    async def main() -> None:
        task = asyncio.create_task(ask())
        await asyncio.sleep(2 * OVERDUE_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)

    run_in_virtual_time(main())
    assert sorted(sends.cancelled) == ["copy", "first"]
