"""Rollouts through either client are the same to the last key, and each finds what the other paid for."""

import asyncio
import json
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest

from stillhouse.config import BudgetConfig, RolloutsConfig, RuntimeConfig
from stillhouse.errors import BudgetReached
from stillhouse.inference import Controller, Endpoint, Journal
from stillhouse.inference.budget import Budget
from stillhouse.inference.endpoint import Price
from stillhouse.inference.rate_limit import Caps, RateControl
from stillhouse.inference.retry import Effects
from stillhouse.rollouts import EverySample, RolloutCollector
from stillhouse.tools import Toolbox
from stillhouse.tools.calculator import calculator
from stillhouse.types import Prompt, Trajectory
from tests.provider import ReceivedRequest, Reply, SimulatedProvider, error

PRICE = Price(2.0, 8.0)
CLIENTS: tuple[Literal["direct", "openai"], ...] = ("direct", "openai")
MakePrompts = Callable[..., list[Prompt]]
Script = Callable[[ReceivedRequest], Reply]


class Run(NamedTuple):
    trajectories: list[Trajectory]
    facts: dict[str, Any]
    caught: Exception | None


def collect(url: str, client: Literal["direct", "openai"], prompts: list[Prompt], folder: Path, budget: Any) -> Run:
    got: list[Trajectory] = []

    async def main() -> dict[str, Any]:
        with Journal(folder / "journal.sqlite3") as journal:
            collector = RolloutCollector(
                EverySample(prompts, 1),
                endpoint=Endpoint(url, "m", "m", "secret-key", PRICE, client=client),
                config=RolloutsConfig(max_tokens=50),
                toolbox=Toolbox([calculator]),
                journal=journal,
                runtime=RuntimeConfig(concurrency=1, max_concurrency=1, hedge=False),
                budget=Budget(budget, PRICE),
                controller=Controller(RateControl(1, Caps(1))),
                effects=Effects(sleep=lambda seconds: asyncio.sleep(0)),
            )
            async with aclosing(collector):
                got.extend([trajectory async for trajectory in collector])
            return dict(collector.stats.as_facts())

    facts, caught = {}, None
    try:
        facts = asyncio.run(main())
    except BudgetReached as reached:
        caught = reached
    untimed = [replace(one, turns=[replace(turn, latency_s=0.0) for turn in one.turns]) for one in got]
    return Run(sorted(untimed, key=lambda one: one.rollout_key), facts, caught)


def test_trajectories_and_costs_are_the_same_and_each_client_finds_what_the_other_paid_for(
    make_prompts: MakePrompts, two_sums_then_answer: Script, tmp_path: Path
) -> None:
    def script(request: ReceivedRequest) -> Reply:
        return error(500, "oops") if request.index == 4 else two_sums_then_answer(request)

    runs, asked = [], []
    for client in CLIENTS:
        (tmp_path / client).mkdir()
        with SimulatedProvider(script) as provider:
            runs.append(collect(provider.url, client, make_prompts(4), tmp_path / client, BudgetConfig()))
            # While a tool runs, another rollout may be asked for: the order is not the client's. One was asked twice.
            asked.append({json.dumps(request, sort_keys=True) for request in provider.requests})
            assert len(provider.ledger) == 13
    direct, hosted = runs
    assert direct.trajectories == hosted.trajectories
    assert asked[0] == asked[1]
    assert [one.stop_reason for one in direct.trajectories] == ["answered"] * 4
    for client, other in (CLIENTS, CLIENTS[::-1]):
        with SimulatedProvider(lambda request: error(500, "nothing is asked again")) as provider:
            again = collect(provider.url, other, make_prompts(4), tmp_path / client, BudgetConfig())
        assert again.trajectories == direct.trajectories
        assert not provider.ledger


@pytest.mark.parametrize("budget", [BudgetConfig(max_requests=7), BudgetConfig(max_usd=0.002)])
def test_a_budget_ends_both_at_the_same_request(
    make_prompts: MakePrompts, hello: Script, tmp_path: Path, budget: BudgetConfig
) -> None:
    runs, asked = [], []
    for client in CLIENTS:
        (tmp_path / client).mkdir()
        with SimulatedProvider(hello) as provider:
            runs.append(collect(provider.url, client, make_prompts(30), tmp_path / client, budget))
            asked.append(provider.requests)
    direct, hosted = runs
    assert isinstance(direct.caught, BudgetReached)
    assert str(direct.caught) == str(hosted.caught)
    assert direct.trajectories == hosted.trajectories
    assert asked[0] == asked[1]
    assert 0 < len(asked[0]) < 30
