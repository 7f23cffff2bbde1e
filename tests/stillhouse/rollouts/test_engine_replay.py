"""Answers in the journal are not paid for again."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from stillhouse.config import RolloutsConfig, RuntimeConfig
from stillhouse.inference import Controller, Endpoint, Journal
from stillhouse.inference.rate_limit import Caps, RateControl
from stillhouse.rollouts import EverySample, RolloutCollector
from stillhouse.tools import Toolbox
from stillhouse.tools.calculator import calculator
from stillhouse.types import Prompt, StopReason
from tests.provider import ReceivedRequest, Reply, SimulatedProvider, completion, error

Collect = Callable[..., Any]
MakePrompts = Callable[..., list[Prompt]]
Script = Callable[[ReceivedRequest], Reply]


def test_finished_trajectories_are_not_asked_again_and_equal_to_the_byte(
    collect: Collect, two_sums_then_answer: Script
) -> None:
    with SimulatedProvider(two_sums_then_answer) as provider:
        first = collect(provider.url, 10)
        billed = provider.num_billed
        second = collect(provider.url, 10)
        assert provider.num_billed == billed
    assert second.stats.num_requests == 0
    assert second.stats.num_replayed_completions == 30

    def as_bytes(got: Any) -> list[bytes]:
        return sorted(orjson.dumps(row) for row in got.trajectories)

    assert as_bytes(first) == as_bytes(second)


def test_a_rollout_replayed_turn_by_turn_has_the_facts_it_was_paid_with(
    collect: Collect, two_sums_then_answer: Script
) -> None:
    broken = True

    def script(request: ReceivedRequest) -> Reply:
        if request.num_turns == 2 and broken:
            return error(500, "down")
        return two_sums_then_answer(request)

    with SimulatedProvider(script) as provider:
        failed = collect(provider.url, 5)
        assert [row.stop_reason for row in failed.trajectories] == [StopReason.ERROR] * 5
        assert failed.trajectories[0].error == {"kind": "transient", "message": "HTTP 500: down", "status": 500}
        billed, broken = provider.num_billed, False
        finished = collect(provider.url, 5)
    assert provider.num_billed == billed + 5
    assert finished.stats.num_replayed_completions == 10
    assert finished.stats.num_tool_calls == 0
    before = {row.rollout_key: row for row in failed.trajectories}
    for row in finished.trajectories:
        assert row.stop_reason is StopReason.ANSWERED
        assert orjson.dumps(row.turns[:2]) == orjson.dumps(before[row.rollout_key].turns)
        assert row.messages[:5] == before[row.rollout_key].messages


def test_more_samples_owe_only_the_missing_ones(collect: Collect, hello: Script) -> None:
    with SimulatedProvider(hello) as provider:
        collect(provider.url, 4, config=RolloutsConfig(num_samples=2))
        got = collect(provider.url, 4, config=RolloutsConfig(num_samples=5))
    assert provider.num_billed == 20
    assert len(got.trajectories) == 20


def test_two_collections_on_one_journal_pay_once_and_agree(collect: Collect, tmp_path: Path) -> None:
    path = tmp_path / "shared.sqlite3"
    results: list[Any] = [None, None]

    def script(request: ReceivedRequest) -> Reply:
        # Every answer is another, as with a provider that knows no seeds.
        return Reply(completion(f"answer {request.index}"), delay_s=0.01)

    def run(index: int, url: str) -> None:
        with Journal(path) as journal:
            results[index] = collect(url, 60, journal=journal)

    with SimulatedProvider(script) as provider:
        threads = [threading.Thread(target=run, args=(index, provider.url)) for index in (0, 1)]
        threads[0].start()
        while provider.num_billed < 5:
            time.sleep(0.01)
        threads[1].start()
        for thread in threads:
            thread.join(120)
        assert provider.num_billed == 60
        run(0, provider.url)
        assert provider.num_billed == 60
    first, second = [{row.rollout_key: orjson.dumps(row) for row in result.trajectories} for result in results]
    assert first == second
    assert len(first) == 60


def test_leaving_early_ends_everything_and_keeps_what_was_paid(
    journal: Journal, collect: Collect, make_prompts: MakePrompts, two_sums_then_answer: Script
) -> None:
    controller = Controller(RateControl(4, Caps(4)))

    async def take_five(url: str) -> int:
        collection = RolloutCollector(
            EverySample(make_prompts(100), 1),
            endpoint=Endpoint(url, "simulated", "model@1"),
            config=RolloutsConfig(),
            toolbox=Toolbox([calculator]),
            journal=journal,
            runtime=RuntimeConfig(),
            controller=controller,
        )
        async with contextlib.aclosing(collection):
            taken = 0
            async for _ in collection:
                taken += 1
                if taken == 5:
                    break
        return len(asyncio.all_tasks())

    with SimulatedProvider(two_sums_then_answer) as provider:
        assert asyncio.run(take_five(provider.url)) == 1
        assert controller.snapshot().in_flight == 0
        billed = provider.num_billed
        assert billed < 100
        got = collect(provider.url, 100)
    assert len(got.trajectories) == 100
    assert provider.num_billed <= 300 + 8
